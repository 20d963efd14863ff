"""What a run will need before it starts: memory, time, and settings that fit."""
