"""Claims of papers on scheduling and carbon beside what ecorl gives."""
