DELETE FROM outbox_claims WHERE member = ?1 AND n = ?2 RETURNING member
