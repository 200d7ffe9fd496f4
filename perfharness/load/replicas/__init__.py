"""The same load on several numbers of replicas, and on several ways to share a GPU."""
