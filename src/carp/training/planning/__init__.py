"""Planning before a run starts: its memory and time, and settings that fit."""
