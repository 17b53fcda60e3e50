"""Bytes to lazy tensors: safetensors, torch, GGUF and hub readers that believe nothing they read."""
