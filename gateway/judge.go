package gateway

import (
	"bytes"
	"context"
	"errors"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// judges are those of the chain's guards that have something to say about one answer, in the order of the chain.
type judges []stage[plugins.AnswerJudge]

// judges asks the guards of answers for theirs.
func (ch *chain) judges(ctx context.Context, c *call) (judges, error) {
	var all judges
	for _, s := range ch.answerGuards {
		var j plugins.AnswerJudge
		err := protect(func() { j = s.do.GuardAnswer(&c.Call) })
		switch {
		case err != nil:
			if err := ch.failure(ctx, s.at, err); err != nil {
				return nil, err
			}
		case j != nil:
			all = append(all, stage[plugins.AnswerJudge]{s.at, j})
		}
	}
	return all, nil
}

// whole lets all judges see an answer that is no stream, and returns it as they leave it.
func (ch *chain) whole(ctx context.Context, c *call, all judges, body []byte) ([]byte, error) {
	for _, s := range all {
		var v plugins.Verdict
		err := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
			v, err = s.do.Whole(ctx, body)
			return err
		})
		if err != nil {
			if err := ch.failure(ctx, s.at, err); err != nil {
				return nil, err
			}
			continue
		}
		c.tag(v.Tags)
		if v.Deny != nil && !ch.onlyLogs(ctx, s.at, v.Deny) {
			return nil, v.Deny
		}
		if v.Body != nil && ch.links[s.at].Mode != governance.ModeLog {
			body = v.Body
		}
	}
	return body, nil
}

// event lets all judges see the next event of a stream, and returns as bytes what goes out in its place.
func (ch *chain) event(ctx context.Context, c *call, all judges, ev sse.Event) ([]byte, error) {
	return ch.pass(ctx, c, all, []sse.Event{ev})
}

// end lets all judges give out what they hold back.
func (ch *chain) end(ctx context.Context, c *call, all judges) ([]byte, error) {
	var out []byte
	for i := range all {
		rest, err := ch.ask(ctx, c, all[i], func(ctx context.Context, j plugins.AnswerJudge) (plugins.StreamVerdict, error) { return j.End(ctx) })
		if err != nil {
			return nil, err
		}
		raw, err := ch.pass(ctx, c, all[i+1:], rest.Events)
		if err != nil {
			return nil, err
		}
		out = append(out, raw...)
	}
	return out, nil
}

// pass sends events through judges, one after the other.
func (ch *chain) pass(ctx context.Context, c *call, all judges, events []sse.Event) ([]byte, error) {
	for _, s := range all {
		var next []sse.Event
		for _, ev := range events {
			v, err := ch.ask(ctx, c, s, func(ctx context.Context, j plugins.AnswerJudge) (plugins.StreamVerdict, error) {
				return j.Event(ctx, ev)
			})
			switch {
			case err != nil:
				return nil, err
			case v.Pass:
				next = append(next, ev)
			default:
				next = append(next, v.Events...)
			}
		}
		events = next
	}
	if len(events) == 1 && events[0].Raw != nil {
		return events[0].Raw, nil
	}
	var raw bytes.Buffer
	for _, ev := range events {
		if ev.Raw == nil {
			ev.Raw = event(ev.Name, ev.Data)
		}
		raw.Write(ev.Raw)
	}
	return raw.Bytes(), nil
}

// ask gets one judge's verdict. Where the judge fails and need not agree, or is in log mode, what it was asked about passes.
func (ch *chain) ask(
	ctx context.Context, c *call, s stage[plugins.AnswerJudge], do func(context.Context, plugins.AnswerJudge) (plugins.StreamVerdict, error),
) (v plugins.StreamVerdict, err error) {
	failed := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
		v, err = do(ctx, s.do)
		return err
	})
	if failed != nil {
		return plugins.StreamVerdict{Pass: true}, ch.failure(ctx, s.at, failed)
	}
	c.tag(v.Tags)
	switch {
	case v.Deny != nil && !ch.onlyLogs(ctx, s.at, v.Deny):
		return v, v.Deny
	case v.Deny != nil, ch.links[s.at].Mode == governance.ModeLog:
		return plugins.StreamVerdict{Pass: true}, nil
	}
	return v, nil
}

// judged lets the chain's guards see an event, in the client's dialect, and returns what goes out in its place.
func (c *call) judged(a *attempt, ev sse.Event) ([]byte, error) {
	raw, err := c.g.chain.event(a.ctx, c, a.judges, ev)
	if err != nil && !errors.Is(err, context.Canceled) {
		a.ending.Blocked = true
	}
	return raw, err
}
