DELETE FROM outbox_claims WHERE member = $1::bigint AND n = $2::bigint RETURNING member
