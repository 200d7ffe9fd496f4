"""The measured processes: started together, watched and ended, with no process left running."""
