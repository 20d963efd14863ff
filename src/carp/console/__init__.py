"""Output for people while a command runs: messages, warnings, progress, and escaped text from outside."""
