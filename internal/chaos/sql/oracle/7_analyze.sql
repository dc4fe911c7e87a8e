ANALYZE booked;
