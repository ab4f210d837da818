"""What a broker reports about itself: metrics, their HTTP endpoint, handler timings."""
