package loadtest

import (
	"context"
	"fmt"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// TargetOptions are those of a run against gateways of somebody else.
type TargetOptions struct {
	Options

	// URLs are the gateways' base URLs; calls go to them in turn.
	URLs []string
	// Key is the virtual key of all calls.
	Key secret.String
	// Model is what they ask for.
	Model string
}

// RunTargets takes one sample for each rate against gateways that run already. What cannot be seen from outside is not
// judged: what the limits admitted, the ledger, foreign CPU.
func RunTargets(ctx context.Context, o TargetOptions) (*Report, error) {
	report := &Report{}
	for _, rate := range o.rates() {
		l, err := o.load(o.URLs, []secret.String{o.Key}, o.Model)
		if err != nil {
			return nil, err
		}
		s := &Sample{Replicas: len(o.URLs)}
		o.send(ctx, s, l, rate, title(len(o.URLs), rate, o.Connections))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("take sample: %w", ctx.Err())
		}
		report.Samples = append(report.Samples, Judged{*s, Judge(s)})
	}
	report.Pass = pass(report.Samples)
	return report, nil
}
