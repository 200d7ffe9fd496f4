"""HTTP targets: plain requests and OpenAI-style servers."""
