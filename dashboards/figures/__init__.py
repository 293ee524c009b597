"""Figures as plain documents for plotly.js: nothing here imports Plotly, so that the pages load quickly."""
