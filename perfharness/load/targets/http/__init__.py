"""HTTP targets: plain requests, KServe v2 (Triton) and OpenAI-style servers."""
