"""Inside the process of a case: what is measured there, and what it leaves in its folder."""
