SELECT id FROM timers WHERE id IN (?0) AND (?1 = '' OR status = ?1) AND status <> ?2 ?3
