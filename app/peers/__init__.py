"""Connections between the workers of a group: submissions to lane owners, requests, commits and statuses."""
