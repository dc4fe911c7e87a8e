package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	// lookEvery is how often clients of one batch make the provider be asked.
	lookEvery = time.Second
	// lookTime is how long a client waits for what the provider says of its batch, and for its settlement.
	lookTime = 20 * time.Second
	// creationTime bounds the making of a batch; see governance.BatchStore.
	creationTime = 2 * time.Minute
	// windowMargin is how much longer than a batch may run its reservations are held (ruling 29).
	windowMargin = time.Hour
	maxWindow    = 14 * 24 * time.Hour
	// maxMark is how many pairs of metadata a client may give, one less than providers take.
	maxMark = 15
)

func noBatch() error { return fault(governance.CodeNotFound, "There is no such batch.") }

// batch finds a batch of the caller's organization, before any provider is called (F152).
func (c *call) batch(id string) (governance.Batch, error) {
	b, err := c.g.batches.Batch(c.ctx(), c.Principal.Organization.Num, id)
	switch {
	case errors.Is(err, governance.ErrNotFound) || err == nil && b.State == governance.BatchCreating:
		return b, noBatch()
	case err != nil:
		return b, orUnavailable(err)
	}
	return b, nil
}

// serveBatches lists the organization's batches as they were last seen.
func (c *call) serveBatches() error {
	if err := c.keeps(); err != nil {
		return err
	}
	p, err := c.page(c.r.URL.Query())
	if err != nil {
		return err
	}
	all, next, err := c.g.batches.Batches(c.ctx(), c.Principal.Organization.Num, p)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return noBatch()
	case err != nil:
		return orUnavailable(err)
	}
	data := make([]json.RawMessage, 0, len(all))
	for i := range all {
		data = append(data, all[i].Picture)
	}
	list := listState{Object: "list", Data: data, HasMore: next != ""}
	if n := len(all); n > 0 {
		list.FirstID, list.LastID = &all[0].ID, &all[n-1].ID
	}
	return c.reply(list)
}

// serveBatch shows one batch. The provider is asked for the newest, at most once in a while; if it is away, what was seen last
// is shown.
func (c *call) serveBatch() error {
	if err := c.keeps(); err != nil {
		return err
	}
	b, err := c.batch(c.param)
	if err != nil {
		return err
	}
	if b.State == governance.BatchOpen {
		mine, err := c.g.batches.Look(c.ctx(), b.Num, lookEvery)
		if err != nil {
			return orUnavailable(err)
		}
		if mine {
			c.refresh(&b)
		}
		if b, err = c.batch(c.param); err != nil {
			return err
		}
	}
	return c.replyRaw(b.Picture)
}

func (c *call) replyRaw(body []byte) error {
	if err := c.answerJSON(http.StatusOK, body); err != nil {
		return errClientLeft
	}
	return nil
}

// serveBatchCancel asks the provider to stop a batch. What has been answered until then is charged.
func (c *call) serveBatchCancel() error {
	if err := c.keeps(); err != nil {
		return err
	}
	b, err := c.batch(c.param)
	if err != nil {
		return err
	}
	if b.State == governance.BatchEnded {
		return invalid("", "The batch has ended.")
	}
	a, err := c.accountOf(b.TargetNum)
	if err != nil {
		return err
	}
	_, _, err = a.object(context.WithoutCancel(c.ctx()), resource{
		method: http.MethodPost, kind: providers.OpenAIBatches, path: []string{b.UpstreamID, "cancel"},
	})
	if err != nil {
		return c.explain(err, namesOf(&b))
	}
	c.refresh(&b)
	if b, err = c.batch(c.param); err != nil {
		return err
	}
	return c.replyRaw(b.Picture)
}

// refresh asks the provider what became of a batch. Where that fails the client sees what was known before, and a warning.
func (c *call) refresh(b *governance.Batch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), lookTime)
	defer cancel()
	if err := c.g.lookAfter(ctx, b); err != nil {
		c.log.Warn().Err(err).Str(lognames.Batch, b.ID).Msg("batch not looked after")
		c.warnings = append(c.warnings, "batch_not_refreshed")
	}
}

// newBatch is a batch that is being made.
type newBatch struct {
	c       *call
	file    governance.File
	batch   governance.Batch
	account account
	held    int // charges that are reserved, from the first on
}

// serveBatchCreate makes a batch of a file. The money that it may cost at most is held before the provider hears of it.
func (c *call) serveBatchCreate() error {
	if err := c.keeps(); err != nil {
		return err
	}
	if err := c.readResource(); err != nil {
		return err
	}
	n := &newBatch{c: c}
	if err := n.read(); err != nil {
		return err
	}
	if err := c.claim(); err != nil {
		return err
	}
	if err := n.plan(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), creationTime)
	defer cancel()
	var err error
	if n.batch, err = c.g.batches.Begin(ctx, n.batch); err != nil {
		if errors.Is(err, governance.ErrNotFound) {
			return noFile("input_file_id")
		}
		return orUnavailable(err)
	}
	if err := n.reserve(ctx); err != nil {
		return errors.Join(err, n.undo(ctx))
	}
	return n.create(ctx)
}

// readResource takes a body that is no call of a model.
func (c *call) readResource() error {
	var err error
	if c.wishes, err = readWishes(c.r.Header); err != nil {
		return err
	}
	if c.wishes.dryRun {
		return invalid(headerDryRun, "Batches cannot be tried out.")
	}
	body, taken, err := c.g.readBody(c.rc, c.r)
	c.bodyBytes = taken
	if err != nil {
		return err
	}
	c.bodyRead = true
	if c.Body, err = jsonedit.Parse(body); err != nil {
		return unreadable(err)
	}
	return nil
}

// read finds what the body asks for.
func (n *newBatch) read() error {
	c := n.c
	id, _, err := c.Body.String("input_file_id")
	if err != nil || id == "" {
		return invalid("input_file_id", "input_file_id must name a file.")
	}
	if n.file, err = c.file(id, "input_file_id"); err != nil {
		return err
	}
	if n.file.Purpose != governance.PurposeBatch {
		return invalid("input_file_id", "The file has no requests of a batch.")
	}
	endpoint, _, err := c.Body.String("endpoint")
	rt := batchRoute(endpoint)
	if err != nil || rt == nil || rt.name != n.file.Route {
		return invalid("endpoint", "endpoint must be the url of the file's requests.")
	}
	window, _, err := c.Body.String("completion_window")
	if n.batch.Window, err = windowOf(window, err); err != nil {
		return err
	}
	n.batch.Window += windowMargin
	if raw, ok := c.Body.Get("metadata"); ok && raw[0] != 'n' {
		var pairs map[string]string
		if json.Unmarshal(raw, &pairs) != nil || len(pairs) > maxMark || pairs[batchMark] != "" {
			return invalid("metadata", "metadata must have at most "+strconv.Itoa(maxMark)+" members, all of them strings.")
		}
	}
	return nil
}

// windowOf reads how long a batch may take: hours or days, as 24h.
func windowOf(text string, err error) (time.Duration, error) {
	wrong := invalid("completion_window", "completion_window must be a time such as 24h.")
	if err != nil {
		return 0, wrong
	}
	unit := time.Hour
	digits, hours := strings.CutSuffix(text, "h")
	if !hours {
		var days bool
		if digits, days = strings.CutSuffix(text, "d"); !days {
			return 0, wrong
		}
		unit = 24 * time.Hour
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > int(maxWindow/unit) {
		return 0, wrong
	}
	return time.Duration(n) * unit, nil
}

// plan finds out whether the caller may, and what is to be reserved.
func (n *newBatch) plan() error {
	c := n.c
	if err := c.attribute(); err != nil {
		return err
	}
	if err := c.pickCatalog(); err != nil {
		return err
	}
	rt := batchRouteNamed(n.file.Route)
	t, err := c.batchTarget(rt, n.file.Model, n.file.TargetNum)
	if err != nil {
		return err
	}
	c.Target, c.Demand = t, n.file.Demand
	a, _ := c.g.account(t)
	n.account = a
	n.batch.ID, n.batch.Organization, n.batch.Key = ids.NewPublic(ids.Batch), c.Principal.Organization.Num, c.Principal.Key.Num
	n.batch.FileID, n.batch.TargetNum = n.file.ID, t.Num
	n.batch.Picture = []byte("{}")
	tiers := []governance.PriceTier{{}}
	if t.Price != nil {
		tiers = t.Price.BatchTiers()
	}
	for _, tier := range tiers {
		n.batch.Charges = append(n.batch.Charges, governance.BatchCharge{
			Attempt: ids.New(c.g.now()), FromInput: tier.FromInput, Prices: tier.Prices,
		})
	}
	return nil
}

func batchRouteNamed(name string) *route {
	for _, rt := range routes() {
		if rt.name == name {
			return rt
		}
	}
	return nil
}

// reserve holds what the batch may cost at most. All of it is held by the first charge; those of further context tiers hold
// the least that can be, so that each has its legs.
func (n *newBatch) reserve(ctx context.Context) error {
	c := n.c
	for i := range n.batch.Charges {
		for renewed := false; ; renewed = true {
			request, err := n.request(i)
			if err != nil {
				return err
			}
			reservation, err := c.g.ledger.Reserve(ctx, request)
			if err == nil {
				c.g.catalogs.Notice(reservation.ConfigVersion)
				n.held++
				if i == 0 {
					c.levels = reservation.Levels
					c.countWouldRefuse()
				}
				break
			}
			if errors.Is(err, governance.ErrStaleChain) && !renewed {
				if c.Target, err = c.renew(c.Target); err != nil {
					return err
				}
				continue
			}
			return c.notReserved(err)
		}
	}
	return nil
}

// notReserved explains why nothing could be reserved.
func (c *call) notReserved(err error) error {
	if d, ok := errors.AsType[*governance.Denial](err); ok {
		c.g.catalogs.Notice(d.ConfigVersion)
		return denied(d, &c.Call, c.g.now())
	}
	if _, ok := errors.AsType[*governance.Error](err); ok {
		return err
	}
	if errors.Is(err, governance.ErrOverloaded) {
		return &governance.Error{Code: governance.CodeGatewayOverloaded, Public: "Too many requests wait for admission.", Err: err}
	}
	return &governance.Error{
		Code: governance.CodeLimitStoreUnavailable, Public: "The limits cannot be checked at the moment, so nothing was forwarded.", Err: err,
	}
}

// request is what one charge reserves. Of a batch only money has legs (ruling 29).
func (n *newBatch) request(charge int) (governance.ReserveRequest, error) {
	c, t := n.c, n.c.Target
	c.Attempt = 1
	all, err := c.g.chain.charge(c.ctx(), c)
	if err != nil {
		return governance.ReserveRequest{}, err
	}
	holds := make([]governance.Hold, 0, len(all))
	for _, h := range all {
		if h.Limit.Metric == governance.MetricCost {
			if charge > 0 {
				h.Amount = 1
			}
			holds = append(holds, h)
		}
	}
	estimate := governance.Estimate{Prices: n.batch.Charges[charge].Prices}
	if charge == 0 {
		if estimate, err = c.Demand.Estimate(t, holds); err != nil {
			return governance.ReserveRequest{}, err
		}
		if err := c.affords(t, estimate); err != nil {
			return governance.ReserveRequest{}, err
		}
	}
	request := governance.ReserveRequest{
		ID: n.batch.Charges[charge].Attempt, Estimate: estimate, Holds: holds, HardExpiry: n.batch.Window,
		Origin: governance.Origin{
			RequestID: c.ID, Attempt: charge + 1,
			Organization: c.Principal.Organization, Team: c.Principal.Team, Key: c.Principal.Key, User: c.Principal.User,
			EndUser: c.EndUserNum, Route: governance.RouteBatches, Model: c.Model, ModelNum: c.Resolved.Model.Num,
			Provider: t.Provider.Name, UpstreamModel: t.UpstreamModel, TargetNum: t.Num, Unpriced: c.Demand.Unpriced(t),
		},
	}
	if t.Price != nil {
		request.Origin.PriceNum = t.Price.Num
	}
	return request, nil
}

// undo gives back what is held for a batch that the provider has not got, and forgets it.
func (n *newBatch) undo(ctx context.Context) error {
	for i := range n.held {
		if err := n.c.g.ledger.Settle(ctx, n.batch.Charges[i].Released()); err != nil && !errors.Is(err, governance.ErrAlreadyClosed) {
			return err // whoever looks after the batch later tries again
		}
	}
	return n.c.g.batches.Forget(ctx, n.batch.Num)
}

// create asks the provider for the batch. Where it is not known whether the provider has it, it stays as it is, and is looked
// for later.
func (n *newBatch) create(ctx context.Context) error {
	c := n.c
	body, err := c.Body.With(
		jsonedit.At("input_file_id").String(n.file.UpstreamID), jsonedit.At("metadata", batchMark).String(n.batch.ID),
	)
	if err != nil {
		return errors.Join(unreadable(err), n.undo(ctx))
	}
	doc, sent, err := n.account.object(ctx, resource{
		method: http.MethodPost, kind: providers.OpenAIBatches, contentType: contentJSON, body: strings.NewReader(string(body)),
	})
	names := naming{n.file.UpstreamID: n.file.ID}
	if r, refused := errors.AsType[*resourceError](err); err != nil && (!sent || refused && r.status < http.StatusInternalServerError) {
		if err := n.undo(ctx); err != nil {
			c.log.Warn().Err(err).Str(lognames.Batch, n.batch.ID).Msg("refused batch not forgotten")
		}
		return c.explain(err, names)
	}
	if err != nil {
		return c.explain(err, names)
	}
	upstream, _, err := doc.String("id")
	if err != nil || upstream == "" {
		return &failure{cause: fault(governance.CodeUpstreamInvalid, invalidMessage)}
	}
	n.batch.FileUpstream, n.batch.UpstreamID = n.file.UpstreamID, upstream
	picture := openPicture(&n.batch, doc)
	if err := c.g.batches.Open(ctx, n.batch.Num, upstream, picture); err != nil {
		return orUnavailable(err) // it will be found by its mark
	}
	n.tell(ctx)
	c.attemptHeaders(c.Target, 1)
	return c.replyRaw(picture)
}

// tell keeps what the client said about the batch beside its rows.
func (n *newBatch) tell(ctx context.Context) {
	c := n.c
	if len(c.Tags) == 0 && len(c.Metadata) == 0 {
		return
	}
	err := c.g.spend.Attribute(ctx, []governance.Attribution{{
		AttemptID: n.batch.Charges[0].Attempt, RequestID: c.ID, Tags: c.Tags, Metadata: c.Metadata,
	}})
	if err != nil {
		c.log.Warn().Err(err).Str(lognames.Batch, n.batch.ID).Msg("attribution lost")
	}
}
