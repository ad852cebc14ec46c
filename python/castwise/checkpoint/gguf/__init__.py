"""What llama.cpp calls and states of models, in GGUF files, and transformers in folders."""
