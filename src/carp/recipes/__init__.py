"""Recipes as YAML files; `carp recipes` lists them."""
