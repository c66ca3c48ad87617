-- Plans are made once for a connection, also while tables are empty: what reads all of
-- one, or sorts it, would be the best plan then, and stay. Those of rare steps are made
-- each time. Locks that a process has when it is frozen end.
SELECT set_config('plan_cache_mode', $2::text, true), set_config('jit', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_material', 'off', true),
	set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '5s', true),
	set_config('synchronous_commit', COALESCE($1::text, CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END), true)
