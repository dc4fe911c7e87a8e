package gateway_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// closedPort returns an address that nothing listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return "http://" + l.Addr().String()
}

// TestF214_OneTableOfWhatIsTriedNext is the documented table: which failures of the first target let the second one try.
func TestF214_OneTableOfWhatIsTriedNext(t *testing.T) {
	t.Parallel()
	next := map[int]bool{
		400: false, 404: false, 409: false, 410: false, 413: false, 422: false, 425: false, // about the caller's request
		401: true, 402: true, 403: true, // about our account
		408: true, 429: true, 500: true, 502: true, 503: true, 504: true, 529: true, // about that upstream
	}
	for status, tried := range next {
		for _, body := range []string{chatBody, streamBody} {
			t.Run(fmt.Sprint(status, len(body)), func(t *testing.T) {
				t.Parallel()
				b := start(t, func(s *setup) { s.model("m", fmt.Sprintf("status(%d)", status), "small") })
				a := b.post("/v1/chat/completions", body)
				if tried {
					require.Equal(t, http.StatusOK, a.StatusCode, a.text())
					require.Equal(t, int64(2), b.mock.Counts().Count)
				} else {
					require.Equal(t, status, a.StatusCode, a.text())
					require.Equal(t, int64(1), b.mock.Counts().Count)
				}
				require.Zero(t, b.ledger.held())
			})
		}
	}
	t.Run("reset", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "reset_before_bytes", "small") })
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
	})
	t.Run("unreachable", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "small", "small")[0].BaseURL = closedPort(t) })
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
		require.Equal(t, int64(1), b.mock.Counts().Count)
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "small", "small")[0].BaseURL = "http://upstream.invalid" })
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
	})
	t.Run("not JSON", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "reset_after(10)", "small") })
		require.Equal(t, http.StatusOK, b.chat().StatusCode, "an answer of which nothing was relayed")
	})
	t.Run("redirect", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "redirect") })
		a := b.chat()
		require.Equal(t, http.StatusBadGateway, a.StatusCode)
		require.Empty(t, a.Header.Get("Location"))
		require.Equal(t, int64(1), b.mock.Counts().Count, "no redirect is followed")
	})
}

func TestF217_EachCallGetsTheSecondTargetsAnswer(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "status(503)", "small") })
	for range 5 {
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
	}
	require.Equal(t, int64(10), b.mock.Counts().Count, "503 is never retried in place")
}

func TestAttemptsHaveOneBudget(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "status(500)", "status(500)", "status(500)", "small") })
	a := b.chat()
	require.Equal(t, http.StatusInternalServerError, a.StatusCode)
	require.Equal(t, int64(3), b.mock.Counts().Count)
	require.Equal(t, "false", a.Header.Get("X-Should-Retry"), "F215: the SDK must not multiply our retries")
	require.Len(t, b.settled(3), 3)
}

// TestF215_WhatMayHaveCostSomethingIsNotBoughtAgain, whichever attempt's error the caller is told; and behind the deadline nobody else is
// asked. A provider that says when to come again is believed.
func TestF215_WhatMayHaveCostSomethingIsNotBoughtAgain(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.Connect, s.config.FirstByte, s.config.Unary = 400*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
		s.model("m", "hold", "hold", "hold")
	})
	a := b.chat()
	require.Equal(t, http.StatusGatewayTimeout, a.StatusCode, a.text())
	require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
	require.Equal(t, "true", a.Header.Get("X-Envoy-Ratelimited"))
	require.Equal(t, int64(1), b.mock.Counts().Count)

	b = start(t, func(s *setup) {
		lost := s.model("lost", "reset_after(5)", "small")
		lost[1].BaseURL = "http://127.0.0.1:1"
		s.model("later", "status(503),retry_after(2)", "status(503),retry_after(2)")
	})
	ask := func(model string) answer {
		return b.post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`)
	}
	a = ask("lost")
	require.Equal(t, http.StatusBadGateway, a.StatusCode, a.text())
	require.Equal(t, "upstream_unreachable", a.failure(t).Code, "of the second target")
	require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
	require.Equal(t, "true", a.Header.Get("X-Envoy-Ratelimited"))

	a = ask("later")
	require.Equal(t, "2", a.Header.Get("Retry-After"))
	require.Empty(t, a.Header.Get("X-Should-Retry"))
}

// What has been answered was paid for; that the ledger could not note it yet is no reason to ask another target.
func TestASettlementThatFailsIsNotForwardedAgain(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small", "small") })
	b.ledger.lost = governance.ErrLimitStoreUnavailable
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.True(t, strings.HasSuffix(b.stream().text(), "data: [DONE]\n\n"))
	require.Equal(t, int64(2), b.mock.Counts().Count, "each call was forwarded once")
}

func TestRuling17_OneCallTakesItsRequestAndSlotOnce(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "status(500)", "status(500)", "small")
		s.limit(governance.KindRate, governance.MetricRequests, 1)
		s.limit(governance.KindConcurrency, governance.MetricRequests, 1)
		s.limit(governance.KindRate, governance.MetricTokens, 100_000)
		target := s.limit(governance.KindRate, governance.MetricRequests, 10)
		target.Scope = governance.Scope{Type: governance.ScopeTarget, Subject: governance.Ref{Num: 2}}
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	admitted := b.ledger.admitted()
	require.Len(t, admitted, 3)
	for i, r := range admitted {
		require.Equal(t, i+1, r.Origin.Attempt)
		require.Equal(t, admitted[0].Origin.RequestID, r.Origin.RequestID)
		require.Equal(t, i > 0, r.Closes != nil, "closing attempt n and reserving n + 1 travel together")
		for _, h := range r.Holds {
			once := h.Limit.Scope.Type == governance.ScopeKey && h.Limit.Metric == governance.MetricRequests
			require.Equal(t, once && i > 0, h.Carried, "attempt %d, limit %d", i+1, h.Limit.Num)
		}
	}
	for i, s := range b.settled(3) {
		require.Equal(t, admitted[i].ID, s.ID)
		require.Equal(t, i < 2, s.Carry)
	}
	require.Equal(t, http.StatusTooManyRequests, b.chat().StatusCode, "the one request is spent")
}

func TestRuling17_ARefusedTargetBetweenTwoAttemptsCostsNothing(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "status(500)", "small", "small")
		s.limit(governance.KindRate, governance.MetricRequests, 1)
		s.limit(governance.KindConcurrency, governance.MetricRequests, 1)
		full := s.limit(governance.KindRate, governance.MetricRequests, 0)
		full.Scope = governance.Scope{Type: governance.ScopeTarget, Subject: governance.Ref{Num: 2}}
	})
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, "provider-3", a.Header.Get("X-Tollgate-Provider"))
	require.Len(t, b.settled(2), 2)
	require.Zero(t, b.ledger.held())
	require.Equal(t, "rate_limit_exceeded", b.chat().failure(t).Code, "the slot is free, the one request is spent")
}

func TestRuling17_AnUnsentAttemptGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small", "small")[0].BaseURL = closedPort(t)
		s.limit(governance.KindRate, governance.MetricRequests, 1)
		s.limit(governance.KindConcurrency, governance.MetricRequests, 1)
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	s := b.settled(2)
	require.True(t, s[0].Release)
	require.False(t, s[0].Carry)
	require.False(t, b.ledger.admitted()[1].Holds[0].Carried)
}

func TestRuling29_NothingWrittenIsReleased(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small")[0].BaseURL = closedPort(t) })
	a := b.chat()
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.Equal(t, "upstream_unreachable", a.failure(t).Code)
	require.Equal(t, "true", a.Header.Get("X-Should-Retry"))
	require.Empty(t, a.Header.Get("X-Envoy-Ratelimited"))
	require.NotContains(t, a.text(), "127.0.0.1")
	require.True(t, b.settled(1)[0].Release)
}

func TestATargetsRefusalTriesTheNextAndEveryOtherIsFinal(t *testing.T) {
	t.Parallel()
	full := func(s *setup) {
		l := s.limit(governance.KindRate, governance.MetricRequests, 0)
		l.Scope = governance.Scope{Type: governance.ScopeTarget, Subject: governance.Ref{Num: 1}}
	}
	b := start(t, func(s *setup) { s.model("m", "small", "small"); full(s) })
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Equal(t, "provider-2", a.Header.Get("X-Tollgate-Provider"))
	require.Equal(t, "1", a.Header.Get("X-Tollgate-Attempts"))

	b = start(t, func(s *setup) { s.model("m", "small"); full(s) })
	a = b.chat()
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.Equal(t, "target", a.failure(t).Details.Scope.Type)
	require.Zero(t, b.mock.Counts().Count)
}

func TestF011_AFallbackIsPaidByItsOwnPrice(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		targets := s.model("free", "status(500)", "small")
		targets[0].Price = &governance.PriceVersion{Num: 1, Free: true, Tiers: []governance.PriceTier{{}}}
		s.limit(governance.KindBudget, governance.MetricCost, 0)
	})
	a := b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"free"`, 1))
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode, a.text())
	require.Equal(t, "budget_exceeded", a.failure(t).Code)
	require.Equal(t, int64(1), b.mock.Counts().Count, "the paid target must see nothing")
	require.Zero(t, b.ledger.held())
}

func TestRuling20_UnpricedTargets(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")[0].Price = nil
		s.model("both", "small", "small")[0].Price = nil
	})
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode, "nobody has a budget")
	require.True(t, b.ledger.admitted()[0].Origin.Unpriced)
	require.Empty(t, a.Header.Get("X-Tollgate-Cost-Usd"))

	b = start(t, func(s *setup) {
		s.model("gap", "small")[0].Price.Tiers[0].Prices[governance.UnitInput] = 0
		s.model("m", "small")[0].Price = nil
		s.model("both", "small", "small")[0].Price = nil
		s.limit(governance.KindBudget, governance.MetricCost, 1e12)
	})
	a = b.chat()
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Equal(t, "model_unpriced", a.failure(t).Code)
	require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"both"`, 1)).StatusCode)
	a = b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"gap"`, 1))
	require.Equal(t, "model_unpriced", a.failure(t).Code, "a price of output alone gives the input away")
}

func TestMaxCost(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.chat("X-Tollgate-Max-Cost", "0.000001")
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Equal(t, "max_cost_exceeded", a.failure(t).Code)
	require.Zero(t, b.mock.Counts().Count)
	require.Equal(t, http.StatusOK, b.chat("X-Tollgate-Max-Cost", "1").StatusCode)
	require.Equal(t, http.StatusBadRequest, b.chat("X-Tollgate-Max-Cost", "-1").StatusCode)
}

func TestRuling8_AnAdmissionTellsOfNewerConfiguration(t *testing.T) {
	t.Parallel()
	b := start(t)
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	b.catalogs.mu.Lock()
	defer b.catalogs.mu.Unlock()
	require.Equal(t, int64(configVersion), b.catalogs.noticed)
}

func TestWhatNoMeterCanHoldIsTheCallersFault(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.limit(governance.KindBudget, governance.MetricCost, 1e9) })
	absurd := strings.Replace(chatBody, `{`, `{"max_tokens":1000000000000,`, 1)
	for _, path := range []string{"/v1/chat/completions", "/v1/estimate"} {
		a := b.post(path, absurd)
		require.Equal(t, http.StatusBadRequest, a.StatusCode, a.text())
		require.Equal(t, "invalid_request", a.failure(t).Code)
		require.Equal(t, "max_tokens", *a.failure(t).Param)
		require.Empty(t, a.Header.Get("Retry-After"))
	}
	a := b.post("/v1/chat/completions", strings.Replace(chatBody, `{`, `{"max_tokens":100000000000,`, 1))
	require.Equal(t, "reservation_too_large", a.failure(t).Code, "200,000 dollars can be counted")
	b.ledger.fail = func(governance.ReserveRequest) error {
		return &governance.Error{Code: governance.CodeInvalidRequest, Public: "The request asks for more than can be counted."}
	}
	a = b.chat()
	require.Equal(t, http.StatusBadRequest, a.StatusCode, "what the ledger decides is no failure of its store")
	require.Zero(t, b.mock.Counts().Count)
}

func TestAStaleChainIsRenewedOnce(t *testing.T) {
	t.Parallel()
	b := start(t)
	stale := 1
	b.ledger.fail = func(governance.ReserveRequest) error {
		if stale > 0 {
			stale--
			return governance.ErrStaleChain
		}
		return nil
	}
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	stale = 2
	a := b.chat()
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, "limit_store_unavailable", a.failure(t).Code)
	require.Equal(t, int64(1), b.mock.Counts().Count)
}

func TestF155_A18_UndecidedIsATypedRedacted503AndNothingIsForwarded(t *testing.T) {
	t.Parallel()
	secretText := "postgres://MARK@10.0.0.5:5432 SQLSTATE 57014"
	for code, err := range map[string]error{
		"limit_store_unavailable": fmt.Errorf("%s: %w", secretText, governance.ErrLimitStoreUnavailable),
		"gateway_overloaded":      fmt.Errorf("%s: %w", secretText, governance.ErrOverloaded),
	} {
		b := start(t)
		b.ledger.fail = func(governance.ReserveRequest) error { return err }
		a := b.stream()
		require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
		require.Equal(t, code, a.failure(t).Code)
		require.Equal(t, "server_error", a.failure(t).Type)
		wait, err := time.ParseDuration(a.Header.Get("Retry-After") + "s")
		require.NoError(t, err)
		require.GreaterOrEqual(t, wait, 2*time.Second)
		require.LessOrEqual(t, wait, 10*time.Second)
		requireClean(t, a, "MARK", "10.0.0.5", "SQLSTATE", "postgres")
		require.Zero(t, b.mock.Counts().Count)
	}
	b := start(t)
	b.ledger.fail = func(governance.ReserveRequest) error { return errors.New(secretText) }
	require.Equal(t, "limit_store_unavailable", b.chat().failure(t).Code, "whatever is no denial is undecided")
	b.catalogs.mu.Lock()
	b.catalogs.err = fmt.Errorf("%s: %w", secretText, governance.ErrStale)
	b.catalogs.mu.Unlock()
	a := b.chat()
	require.Equal(t, "data_store_unavailable", a.failure(t).Code)
	requireClean(t, a, "MARK", "10.0.0.5", "SQLSTATE", "postgres")
}

func requireClean(t *testing.T, a answer, marks ...string) {
	t.Helper()
	for _, mark := range marks {
		require.NotContains(t, a.text(), mark)
		for name, values := range a.Header {
			require.NotContains(t, strings.Join(values, " "), mark, name)
		}
	}
}

func TestOurAccountsFailuresAreHidden(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]struct {
		status int
		code   string
	}{
		"status(401,echo_key)": {http.StatusBadGateway, "upstream_auth_failed"},
		"status(403)":          {http.StatusBadGateway, "upstream_auth_failed"},
		"status(402)":          {http.StatusServiceUnavailable, "upstream_quota_exhausted"},
		"status(429,quota)":    {http.StatusServiceUnavailable, "upstream_quota_exhausted"},
	} {
		b := start(t, func(s *setup) { s.model("m", script) })
		for _, a := range []answer{b.chat(), b.stream()} {
			require.Equal(t, want.status, a.StatusCode, a.text())
			require.Equal(t, want.code, a.failure(t).Code)
			requireClean(t, a, upstreamID, "quota, please", "Incorrect")
		}
		require.Contains(t, b.log.String(), "provider refused our credential or account")
		require.NotContains(t, b.log.String(), upstreamID)
	}
}

func TestRuling40_TheTargetsCredentialIsMasked(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "status(400,echo_key)") })
	a := b.chat()
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Contains(t, a.text(), "[secret]")
	requireClean(t, a, upstreamID)
}

func TestF055_F130_F134_UpstreamErrorsKeepTheirStatusAndWords(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{"object", "string", "array", "numeric_code", "nested", "detail", "context_length"} {
		script := "status(400," + shape + "),retry_after(7)"
		b := start(t, func(s *setup) { s.model("m", script) })
		for _, body := range []string{chatBody, streamBody} {
			a := b.post("/v1/chat/completions", body)
			require.Equal(t, http.StatusBadRequest, a.StatusCode)
			require.Equal(t, b.direct(script, body), a.text(), shape)
			require.Equal(t, "7", a.Header.Get("Retry-After"))
			require.Equal(t, "provider-1", a.Header.Get("X-Tollgate-Provider"))
			require.Equal(t, "1", a.Header.Get("X-Tollgate-Attempts"))
			require.Equal(t, "application/json", a.Header.Get("Content-Type"))
		}
	}
	for _, shape := range []string{"text", "html", "empty"} {
		b := start(t, func(s *setup) { s.model("m", "status(400,"+shape+")") })
		a := b.chat()
		require.Equal(t, http.StatusBadRequest, a.StatusCode)
		if shape == "empty" && a.text() == b.direct("status(400,empty)", chatBody) {
			continue
		}
		require.NotEmpty(t, a.failure(t).Message, shape)
	}
	b := start(t, func(s *setup) { s.model("m", "status(429),retry_after(7)") })
	require.Equal(t, "7", b.chat().Header.Get("Retry-After"))
}

func TestRefusalsThatAreNoneOfTheProvidersAPI(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]struct {
		status  int
		message string
	}{
		"status(307)":      {http.StatusBadGateway, "The provider's answer is neither a success nor an error."},
		"status(502,html)": {http.StatusBadGateway, "The provider refused the request."},
		"status(503,text)": {http.StatusServiceUnavailable, "The mock was told to answer 503."},
	} {
		b := start(t, func(s *setup) { s.model("m", script) })
		a := b.chat()
		require.Equal(t, want.status, a.StatusCode, a.text())
		require.Equal(t, "upstream_invalid_response", a.failure(t).Code, script)
		require.Equal(t, want.message, a.failure(t).Message, script)
	}
}

func TestSuccessesThatAreNoneAreInvalid(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "wrong_content_type"); s.model("cut", "reset_after(20)") })
	require.Equal(t, http.StatusOK, b.stream().StatusCode, "frames are frames whatever their label")
	a := b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"cut"`, 1))
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.Equal(t, "upstream_aborted", a.failure(t).Code)
}

func TestPathsThatATargetDoesNotSpeak(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small")[0].ProviderKind = "unknown" })
	a := b.chat()
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Equal(t, "model_not_allowed", a.failure(t).Code)
}

func TestDenialsSayWhichLimitRefused(t *testing.T) {
	t.Parallel()
	t.Run("F053 rate", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.limit(governance.KindRate, governance.MetricRequests, 1) })
		a := b.chat()
		require.Equal(t, "1", a.Header.Get("X-Ratelimit-Limit-Requests"))
		require.Equal(t, "0", a.Header.Get("X-Ratelimit-Remaining-Requests"))
		require.Equal(t, "30s", a.Header.Get("X-Ratelimit-Reset-Requests"))
		a = b.chat()
		require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
		e := a.failure(t)
		require.Equal(t, "rate_limit_exceeded", e.Code)
		require.Equal(t, "rate_limit_error", e.Type)
		require.Equal(t, "7", a.Header.Get("Retry-After"))
		require.Equal(t, "7000", a.Header.Get("Retry-After-Ms"))
		require.Equal(t, "key", e.Details.Scope.Type)
		require.Equal(t, "key_000000000003", e.Details.Scope.ID)
		require.Equal(t, "1", e.Details.Amount)
		require.True(t, ids.IsPublic(ids.Limit, e.Details.Limit))
		require.Equal(t, e.Details.Limit, a.Header.Get("X-Tollgate-Limit"))
		require.Equal(t, "0", a.Header.Get("X-Ratelimit-Remaining-Requests"))
		require.Empty(t, e.Details.Others)
	})
	t.Run("F052 each by its own name", func(t *testing.T) {
		t.Parallel()
		for code, limit := range map[string]func(*setup){
			"token_limit_exceeded":  func(s *setup) { s.limit(governance.KindRate, governance.MetricTokens, 1) },
			"concurrency_exceeded":  func(s *setup) { s.limit(governance.KindConcurrency, governance.MetricRequests, 0) },
			"budget_exceeded":       func(s *setup) { s.limit(governance.KindBudget, governance.MetricTokens, 0) },
			"reservation_too_large": func(s *setup) { s.limit(governance.KindBudget, governance.MetricTokens, 100) },
		} {
			b := start(t, limit)
			a := b.chat()
			require.Equal(t, code, a.failure(t).Code)
			require.Zero(t, b.mock.Counts().Count)
			if code == "concurrency_exceeded" {
				require.Equal(t, "1", a.Header.Get("Retry-After"))
			}
		}
	})
	t.Run("max_affordable_tokens fits", func(t *testing.T) {
		t.Parallel()
		for _, metric := range []governance.Metric{governance.MetricTokens, governance.MetricCost} {
			b := start(t, func(s *setup) { s.limit(governance.KindBudget, metric, 2_000_000) })
			body := func(most int64) string {
				return strings.Replace(chatBody, `{`, fmt.Sprintf(`{"max_tokens":%d,`, most), 1)
			}
			refusal := b.post("/v1/chat/completions", body(50_000_000)).failure(t)
			most := refusal.Details.Most
			require.NotNil(t, most)
			require.Contains(t, refusal.Message, "Ask for fewer output tokens.")
			require.Equal(t, http.StatusTooManyRequests, b.post("/v1/chat/completions", body(*most+1)).StatusCode)
			require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", body(*most)).StatusCode)
		}
	})
	t.Run("nothing is affordable", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.limit(governance.KindBudget, governance.MetricTokens, 1) })
		for path, body := range map[string]string{
			"/v1/chat/completions": chatBody, "/v1/embeddings": `{"model":"m","input":"Say hello to them."}`,
		} {
			refusal := b.post(path, body).failure(t)
			require.Equal(t, "reservation_too_large", refusal.Code)
			require.Equal(t, int64(0), *refusal.Details.Most)
			require.Contains(t, refusal.Message, "Fewer output tokens would not help")
		}
	})
	t.Run("ruling 25: the one that holds longest speaks", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) {
			s.limit(governance.KindConcurrency, governance.MetricRequests, 0)
			s.limit(governance.KindBudget, governance.MetricCost, 0)
			s.limit(governance.KindRate, governance.MetricRequests, 0)
		})
		e := b.chat().failure(t)
		require.Equal(t, "budget_exceeded", e.Code)
		require.Len(t, e.Details.Others, 2)
	})
	t.Run("402", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) {
			s.principal.BudgetStatus = http.StatusPaymentRequired
			s.limit(governance.KindBudget, governance.MetricCost, 0)
		})
		require.Equal(t, http.StatusPaymentRequired, b.chat().StatusCode)
	})
	t.Run("F053 waits above a minute", func(t *testing.T) {
		t.Parallel()
		b := start(t)
		limit := &governance.Limit{Meta: governance.Meta{Num: 1, ID: "lim_000000000001"}, Kind: governance.KindRate, Metric: governance.MetricRequests}
		b.ledger.fail = func(governance.ReserveRequest) error {
			return &governance.Denial{Refusals: []governance.Refusal{{
				Level: governance.Level{Limit: limit, Amount: 1}, Reason: governance.RefusedRate, RetryAfter: 61 * time.Second,
			}}}
		}
		a := b.chat()
		require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
		require.Empty(t, a.Header.Get("Retry-After"))
		require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
	})
	t.Run("more than the bucket can hold", func(t *testing.T) {
		t.Parallel()
		b := start(t)
		limit := &governance.Limit{Meta: governance.Meta{Num: 1, ID: "lim_000000000001"}, Kind: governance.KindRate, Metric: governance.MetricTokens}
		b.ledger.fail = func(governance.ReserveRequest) error {
			return &governance.Denial{Refusals: []governance.Refusal{{Level: governance.Level{Limit: limit}, Reason: governance.RefusedExceedsLimit}}}
		}
		require.Equal(t, http.StatusBadRequest, b.chat().StatusCode)
	})
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "hold"); s.model("ok", "small") })
	first := make(chan answer, 1)
	go func() { first <- b.chat("Idempotency-Key", "k") }()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 1 })
	a := b.chat("Idempotency-Key", "k")
	require.Equal(t, http.StatusConflict, a.StatusCode)
	require.Equal(t, "idempotency_in_progress", a.failure(t).Code)
	a = b.post("/v1/chat/completions", strings.Replace(chatBody, "hello", "bye", 1), "Idempotency-Key", "k")
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	b.mock.Release(0, 1)
	require.Equal(t, http.StatusOK, (<-first).StatusCode)
	go func() { first <- b.chat("Idempotency-Key", "k") }()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 1 && c.Count == 2 })
	b.mock.Release(0, 1)
	a = <-first
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Equal(t, "idempotency_key_reused", a.Header.Get("X-Tollgate-Warnings"))
}
