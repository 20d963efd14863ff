"""Protocols on ranked lists: retrieval and copy detection."""
