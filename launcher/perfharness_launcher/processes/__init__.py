"""The measured processes: started together, watched, ended, and nobody left behind."""
