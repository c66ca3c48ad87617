SELECT seq FROM outbox_messages AS o WHERE (?target = '' OR o.lane = (SELECT id FROM outbox_lanes WHERE target = ?target)) AND ?message
