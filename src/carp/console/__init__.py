"""What a person sees while a command runs: messages, warnings, progress, and text from outside made harmless."""
