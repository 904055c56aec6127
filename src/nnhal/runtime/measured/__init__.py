"""What was measured on this machine, and what is made of it when a model is placed."""
