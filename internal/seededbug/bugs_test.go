package seededbug_test

// The files that bugs are planted in.
const (
	functions = "migrations/000003_ledger_functions.up.sql"
	batches   = "migrations/000008_batches.up.sql" // which replaces ledger.expire
	batchGo   = "governance/pgstore/ledger/batch.go"
	laneGo    = "governance/pgstore/ledger/lane.go"
)

// swap replaces one text, which must occur exactly once in its file, by another.
type swap struct{ file, from, to string }

// bug is something that somebody could have got wrong.
type bug struct {
	name  string
	wrong string // what it does
	swaps []swap
	// red are the checks that must fail: tests by the suite that they belong to.
	red map[string][]string
}

const (
	model     = "TestLedger_EqualsMeter"
	histories = "TestLedger_IsLinearizable"
	conforms  = "TestLedger_Conforms"
)

var bugs = []bug{
	{
		name: "settle without the state guard", wrong: "two processes that settle the same attempt both change its meters",
		swaps: []swap{{functions, "IF count_ <> to_settle THEN", "IF false THEN"}},
		red:   map[string][]string{ledgerSuite: {"TestSettle_FromTwoProcessesClosesOnce", model}},
	},
	{
		name: "expiry without a row", wrong: "what expires is charged to the meters and written nowhere",
		swaps: []swap{
			{functions, "FROM gone AS g;", "FROM gone AS g WHERE NOT p_expiry;"},
			{functions, "IF count_ <> to_settle THEN", "IF count_ <> to_settle AND NOT p_expiry THEN"},
		},
		red: map[string][]string{ledgerSuite: {"TestExpire_ClosesWhatADeadProcessLeft"}},
	},
	{
		name: "clock read before the lock", wrong: "who waits for a bucket is not refilled for the wait",
		swaps: []swap{{functions, "decided_at := clock_timestamp();", "decided_at := before;"}},
		red:   map[string][]string{ledgerSuite: {"TestBatch_ReadsTheClockAfterItsLocks"}},
	},
	{
		name: "level read before the lock", wrong: "decides on what a meter held before another process changed it",
		swaps: []swap{{functions, "                FOR UPDATE\n            ) AS m\n        ) AS q;\n        IF cardinality(o_levels)", `            ) AS m
        ) AS q;
        PERFORM FROM unnest(a_limits, a_subjects, a_windows) AS x (limit_id, subject, window_start)
        JOIN ledger.meters AS m USING (limit_id, subject, window_start)
        ORDER BY m.limit_id, m.subject, m.window_start
        FOR UPDATE OF m;
        IF cardinality(o_levels)`}},
		red: map[string][]string{ledgerSuite: {"TestF172_FleetHoldsAtTheConfiguredLimit"}, chaosSuite: {"burst"}},
	},
	{
		name: "window read without a lock", wrong: "buckets and slots are locked, budgets are only read",
		swaps: []swap{
			{functions, "        -- Lock.\n", `        PERFORM FROM unnest(a_limits, a_subjects, a_windows) AS x (limit_id, subject, window_start)
        JOIN ledger.meters AS m USING (limit_id, subject, window_start)
        JOIN tollgate.limits AS l ON l.id = m.limit_id AND l.kind <> 'budget'
        ORDER BY m.limit_id, m.subject, m.window_start
        FOR UPDATE OF m;
`},
			{functions, "                FOR UPDATE\n            ) AS m\n        ) AS q;\n        IF cardinality(o_levels)", "            ) AS m\n        ) AS q;\n        IF cardinality(o_levels)"},
		},
		red: map[string][]string{ledgerSuite: {"TestF172_FleetHoldsAtTheConfiguredLimit"}},
	},
	{
		name: "a new id on retry", wrong: "an admission whose reply was lost is repeated as another attempt",
		swaps: []swap{{batchGo, "b.carefully = true // it may have been committed", `b.carefully = true
				for _, a := range b.admissions {
					a.request.ID = ids.New(l.Clock())
				}`}},
		red: map[string][]string{ledgerSuite: {"TestReserve_LostReplyIsNoLoss"}},
	},
	{
		name: "no tombstone", wrong: "a release that overtakes its reserve leaves no trace",
		swaps: []swap{{functions, "    IF to_bury > 0 THEN", "    IF false THEN"}},
		red:   map[string][]string{ledgerSuite: {model}},
	},
	{
		name: "settlement dropped on error", wrong: "what cannot be settled now is never settled",
		swaps: []swap{{laneGo, "	n.outbox = append(b.settlements, n.outbox...)\n	n.mu.Unlock()\n	n.refuse(", `	for _, s := range b.settlements {
		s.finish(err)
	}
	n.mu.Unlock()
	n.refuse(`}},
		red: map[string][]string{ledgerSuite: {"TestOutage_KeepsTheSettlementsOfAFailedBatch"}},
	},
	{
		name: "unheard and expired, and charged", wrong: "an admission whose reply was lost expires before the repeat; who is refused for it pays",
		swaps: []swap{{laneGo, "			a.lost = a.lost || b.lost\n			n.releaseLost(a)\n		}\n	}", "		}\n	}"}},
		red:   map[string][]string{ledgerSuite: {"TestReserve_ExpiredAfterALostReplyIsPaidBack"}},
	},
	{
		name: "window counts the estimate", wrong: "a budget is charged what was held, whatever was used",
		swaps: []swap{{batchGo, "ints = append(ints, meter.Actual(c.kind, c.metric, -1, &x.Settlement))", `if c.kind == governance.KindBudget {
				ints = append(ints, -1)
				continue
			}
			ints = append(ints, meter.Actual(c.kind, c.metric, -1, &x.Settlement))`}},
		red: map[string][]string{ledgerSuite: {model, histories}},
	},
	{
		name: "the replica's clock", wrong: "each process counts by a clock of its own",
		swaps: []swap{{functions, "decided_at := clock_timestamp();", "decided_at := clock_timestamp() + p_process % 3 * interval '20 seconds';"}},
		red:   map[string][]string{ledgerSuite: {model}},
	},
	{
		name: "adjustment not added to the window", wrong: "what is settled after its expiry has a row and changes no meter",
		swaps: []swap{{functions, "            WHERE s_status[s.i] = 2\n", "            WHERE false\n"}},
		red:   map[string][]string{ledgerSuite: {"TestExpire_ClosesWhatADeadProcessLeft"}},
	},
	{
		name: "refund without refill", wrong: "a settlement that gives back moves the instant of a bucket, and the time before it is lost",
		swaps: []swap{{functions, "WHEN e.full_level <= e.old_level OR e.elapsed <= 0 THEN", "WHEN e.back > 0 OR e.full_level <= e.old_level OR e.elapsed <= 0 THEN"}},
		red:   map[string][]string{ledgerSuite: {model}},
	},
	{
		name: "admission in debt", wrong: "a bucket below zero refuses nothing",
		swaps: []swap{{functions, "WHEN f.ticks IS NOT NULL THEN f.level / f.ticks", "WHEN f.ticks IS NOT NULL THEN CASE WHEN f.level < 0 THEN 4611686018427387904 ELSE f.level / f.ticks END"}},
		red:   map[string][]string{ledgerSuite: {conforms}},
	},
	{
		name: "debt forgiven", wrong: "a bucket never falls below zero",
		swaps: []swap{{functions, "END, e.full_level), -4611686018427387904)::bigint", "END, e.full_level), 0)::bigint"}},
		red:   map[string][]string{ledgerSuite: {model}},
	},
	{
		name: "a refusal keeps what it took", wrong: "who is refused by one limit is charged by the one before it",
		swaps: []swap{{functions, "r_status[j] := coalesce(r_status[j], 0);", `r_status[j] := coalesce(r_status[j], 0);
                    k_taken[w_meters[first]] := k_taken[w_meters[first]] + w_amounts[first];`}},
		red: map[string][]string{ledgerSuite: {model, histories}},
	},
	{
		name: "the sum of a batch unchecked", wrong: "all of a batch are admitted where there is room for one",
		swaps: []swap{{functions, "bool_and(q.known AND k_sums[q.k] <= q.room)", "bool_and(q.known AND q.room > 0)"}},
		red:   map[string][]string{ledgerSuite: {"TestF172_FleetHoldsAtTheConfiguredLimit", model}},
	},
	{
		name: "a new window owes nothing", wrong: "overspending is forgiven at the end of the window",
		swaps: []swap{{functions, "            IF excess > 0 THEN", "            IF false THEN"}},
		red:   map[string][]string{ledgerSuite: {"TestNewWindow_WaitsForALockedPredecessorAlone"}},
	},
	{
		name: "late overspending owed by nobody", wrong: "what a settlement overspends in a window that has ended is forgiven",
		swaps: []swap{{functions, "n_carried[j] + coalesce(growth, 0)", "n_carried[j]"}},
		red:   map[string][]string{ledgerSuite: {conforms}},
	},
	{
		name: "a release keeps what was held", wrong: "what nobody forwarded stays held for ever",
		swaps: []swap{
			{functions, "CASE WHEN x.class >= 6 THEN x.held ELSE 0 END", "CASE WHEN x.class >= 6 AND NOT s_release[x.s] THEN x.held ELSE 0 END"},
			{functions, "CASE WHEN g.class >= 6 THEN g.reserved ELSE 0 END", "CASE WHEN g.class >= 6 AND NOT s_release[s.i] THEN g.reserved ELSE 0 END"},
		},
		red: map[string][]string{ledgerSuite: {model, histories}},
	},
	{
		name: "the living expire", wrong: "a process that is silent for a moment is taken for dead",
		swaps: []swap{{batches, "OR p.beat_at + make_interval(secs => p.lease_seconds) < now_", "OR p.beat_at < now_"}},
		red:   map[string][]string{ledgerSuite: {"TestExpire_ClosesWhatADeadProcessLeft"}, chaosSuite: {"kills"}},
	},
	{
		name: "answered before it is durable", wrong: "the answer goes out while the commit is not yet on the disk",
		swaps: []swap{{functions, "PERFORM pg_catalog.pg_logical_emit_message(true, 'tollgate', '');", "NULL;"}},
		red:   map[string][]string{ledgerSuite: {"TestAnswers_AreDurable"}, chaosSuite: {"crashes"}},
	},
	{
		name: "fail open", wrong: "while the store cannot decide, everything is forwarded",
		swaps: []swap{{"gateway/forward.go", "		return nil, &governance.Error{\n			Code: governance.CodeLimitStoreUnavailable,", `		if err != nil {
			c.open, c.Attempt = a, a.number
			return a, nil
		}
		return nil, &governance.Error{
			Code: governance.CodeLimitStoreUnavailable,`}},
		red: map[string][]string{gatewaySuite: {"TestF155_A18_UndecidedIsATypedRedacted503AndNothingIsForwarded"}},
	},
	{
		name: "forward again when settle fails", wrong: "an answer that could not be settled is asked for again at the next target",
		swaps: []swap{{"gateway/relay.go", "	a.ending.ClientLeft = a.left.Load()\n	settled := c.settle(a, c.g.cfg.AnswerHold)\n	if a.left.Load() {\n", `	a.ending.ClientLeft = a.left.Load()
	if err := c.g.ledger.Settle(c.ctx(), a.settlement()); err != nil {
		return &failure{cause: &governance.Error{Code: governance.CodeLimitStoreUnavailable, Err: err}, next: true}
	}
	settled := c.settle(a, c.g.cfg.AnswerHold)
	if a.left.Load() {
`}},
		red: map[string][]string{gatewaySuite: {"TestASettlementThatFailsIsNotForwardedAgain"}},
	},
	{
		name: "half rounded up", wrong: "half a nano-dollar is always rounded up",
		swaps: []swap{{"internal/money/money.go", "rem > million/2 || rem == million/2 && quo%2 == 1", "rem >= million/2"}},
		red:   map[string][]string{moneySuite: {"TestSum_RoundsOnceHalfToEven"}},
	},
	{
		name: "a tier begins one token late", wrong: "the first request of a dearer tier is priced by the cheaper one",
		swaps: []swap{{"governance/price.go", "p.Tiers[i].FromInput <= input {", "p.Tiers[i].FromInput < max(input, 1) {"}},
		red:   map[string][]string{priceSuite: {"TestCost_EqualsBigArithmetic"}},
	},
	{
		name: "a day begins before it does", wrong: "where clocks are put forward over midnight, a day begins at an hour that is of the day before",
		swaps: []swap{{"governance/meter/window.go", "case t.Hour() > 12:", "case false:"}},
		red:   map[string][]string{windowSuite: {"TestWindow_AcrossChangesOfTheClocks", "TestWindow_EqualsSearch"}},
	},
	{
		name: "a day begins with its second midnight", wrong: "where clocks are put back over midnight, PostgreSQL and the gateway disagree about the day",
		swaps: []swap{{functions, "    IF (midnight - interval '1 hour') AT TIME ZONE", "    IF false AND (midnight - interval '1 hour') AT TIME ZONE"}},
		red:   map[string][]string{ledgerSuite: {"TestWindowStart_EqualsMeter"}},
	},
	{
		name: "what the cache served is counted twice", wrong: "tokens of the prompt that OpenAI has served from its cache are charged as input, too",
		swaps: []swap{{"providers/openai/usage.go", "cached > 0 && u.Total.Given && u.Total.N == prompt+cached+answer {", "cached > 0 {"}},
		red:   map[string][]string{openaiSuite: {"TestF019_F020_F022_F034_UsageInDisjointQuantities", "TestF019_PartsAddUpToTheTotal"}},
	},
	{
		name: "thoughts are free", wrong: "what Gemini has thought is not counted",
		swaps: []swap{{"providers/gemini/usage.go", "q[governance.UnitReasoning] = u.Thoughts.N", "q[governance.UnitReasoning] = 0"}},
		red:   map[string][]string{geminiSuite: {"TestF019_F020_F034_UsageInDisjointQuantities"}},
	},
	{
		name: "the first usage counts", wrong: "the placeholder that Anthropic's streams begin with is taken for their output",
		swaps: []swap{{"providers/anthropic/meter.go", "m.conclude(false)", "m.conclude(true)"}},
		red:   map[string][]string{anthropicSuite: {"TestF004_F005_F064_TheLastUsageOfAStreamCounts"}},
	},
	{
		name: "batches at full price", wrong: "the price book has no price of its own for slow tiers",
		swaps: []swap{{"internal/pricebook/pricebook.go", "t.Prices[u] = (t.Prices[u] + 1) / 2", "t.Prices[u] += 0"}},
		red:   map[string][]string{bookSuite: {"TestLoad_SlowTiersAreHalfPriced"}},
	},
	{
		name: "a tier of a batch begins one token late", wrong: "requests of a batch that just reach a dearer tier are priced by the cheaper one",
		swaps: []swap{{"governance/batch.go", "if b.Charges[i].FromInput <= input {", "if b.Charges[i].FromInput < max(input, 1) {"}},
		red:   map[string][]string{priceSuite: {"TestBatch_SettlementsAreTheSumOfTheAnswers"}},
	},
	{
		name: "a batch keeps what it did not need", wrong: "tiers that no answer of a batch has reached are booked as rows",
		swaps: []swap{{"governance/batch.go", "if answers == 0 && i == 0 {", "if i == 0 || answers > 0 {"}},
		red:   map[string][]string{priceSuite: {"TestBatch_SettlementsAreTheSumOfTheAnswers"}},
	},
	{
		name: "a tier is forgotten", wrong: "pictures are priced as the cheapest of their kind",
		swaps: []swap{{"gateway/media.go", "	a.ending.Tier = d.EstimateTier()\n", "	_ = d.EstimateTier()\n"}},
		red:   map[string][]string{gatewaySuite: {"TestImages_TiersByQualityAndSize"}},
	},
	{
		name: "pieces without a price are free", wrong: "pictures whose price is by the token cost nothing where no tokens were reported",
		swaps: []swap{{"governance/settlement.go", "if !e.Counted.pricedBy(&prices) {", "if false && !e.Counted.pricedBy(&prices) {"}},
		red:   map[string][]string{gatewaySuite: {"TestImages_WithoutTheTokensOfTheirPrice"}},
	},
	{
		name: "the cache asks nobody", wrong: "an answer from the cache takes no request of any limit",
		swaps: []swap{{"gateway/cached.go", "if isRequest(&all[i]) {", "if false {"}},
		red:   map[string][]string{gatewaySuite: {"TestAnAnswerFromTheCacheNeedsARequest"}},
	},
	{
		name: "the cache charges again", wrong: "an answer from the cache is booked like one of the provider",
		swaps: []swap{{"gateway/cached.go", "CacheHit: true}", "Terminal: true, Written: true}"}},
		red:   map[string][]string{gatewaySuite: {"TestAnEqualCallIsAnsweredAgain"}},
	},
	{
		name: "one cache for all", wrong: "organizations are given each other's answers",
		swaps: []swap{{"plugins/cache/cache.go", "	number(c.Principal.Organization.Num)\n	switch", "	switch"}},
		red:   map[string][]string{cacheSuite: {"TestT19_PrincipalsThatDoNotShareNeverMeet"}},
	},
	{
		name: "answers outlive their policy", wrong: "an answer that was made under other guardrails is given again",
		swaps: []swap{{"plugins/cache/cache.go", "	part(c.Policy)\n", ""}},
		red:   map[string][]string{cacheSuite: {"TestWhatIsNoEqualCall"}},
	},
	{
		name: "a word slips through", wrong: "guardrails judge each frame of a stream by itself",
		swaps: []swap{{"plugins/guardrail/scanner.go", "limit = s.trackers[i].undecided(limit)", "_ = s.trackers[i].undecided(limit)"}},
		red:   map[string][]string{guardSuite: {"TestF146_AWordSplitOverFramesDoesNotSlipThrough", "TestF146_PiecesMakeNoDifference"}},
	},
	{
		name: "the last target is put aside", wrong: "where every target fails, calls are refused without being tried",
		swaps: []swap{{"gateway/forward.go", "		if i < well {", "		if i >= 0 || i < well {"}, {"gateway/forward.go", "!ok && i+1 < len(targets) {", "!ok {"}},
		red:   map[string][]string{gatewaySuite: {"TestF218_ABrokenTargetIsNotTriedByEachCall"}},
	},
}
