"""Model back ends: local Hugging Face, scripted; the embedded weights."""
