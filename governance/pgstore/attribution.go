package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

const (
	tagsMax     = 32      // the client's 20, and what the gateway and its plugins add
	tagMax      = 64      // bytes of a tag's name, and of its value
	metadataMax = 4 << 10 // bytes
	rawUsageMax = 64 << 10
)

// Attribute stores what clients said about their requests, each at most once. What a text cannot hold is left out: tags
// with a NUL or other than UTF-8, tags beyond 32 or over 64 bytes, metadata over 4 KiB, raw usage over 64 KiB. So no
// client's text can fail the text of another one, let alone money.
func (s *Spend) Attribute(ctx context.Context, all []governance.Attribution) error {
	if len(all) == 0 {
		return nil
	}
	attempts, requests := make([]string, len(all)), make([]string, len(all))
	tags, metadata, rawUsage := make([]string, len(all)), make([][]byte, len(all)), make([][]byte, len(all))
	for i := range all {
		a := &all[i]
		if a.AttemptID == (ids.ID{}) {
			return invalid("attempt_id", "is missing")
		}
		text, err := json.Marshal(storableTags(a.Tags))
		if err != nil {
			return fmt.Errorf("encode tags of %s: %w", a.AttemptID, err)
		}
		attempts[i], requests[i], tags[i] = a.AttemptID.String(), a.RequestID.String(), string(text)
		metadata[i], rawUsage[i] = atMost(a.Metadata, metadataMax), atMost(a.RawUsage, rawUsageMax)
	}
	_, err := read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "attribution_add", args{
			"attempts": attempts, "requests": requests, "tags": tags, "metadata": metadata, "raw_usage": rawUsage,
		})
	})
	return err
}

func storableTags(all map[string]string) map[string]string {
	kept := make(map[string]string, min(len(all), tagsMax))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if value := all[name]; len(kept) < tagsMax && storable(name) && storable(value) {
			kept[name] = value
		}
	}
	return kept
}

func storable(s string) bool {
	return len(s) <= tagMax && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

// atMost drops what is too long whole: half of a JSON object helps nobody.
func atMost(b []byte, n int) []byte {
	if len(b) == 0 || len(b) > n {
		return nil
	}
	return b
}
