"""Small trainings, what they did rank by rank, and the laws that it must follow."""
