"""What a person sees while a command runs: progress, messages, warnings."""
