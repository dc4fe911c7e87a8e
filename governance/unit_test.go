package governance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnit_NamesAreReadBack(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for u := range UnitCount {
		name := u.String()
		require.NotEmpty(t, name)
		require.False(t, seen[name], name)
		seen[name] = true
		back, ok := ParseUnit(name)
		require.True(t, ok)
		require.Equal(t, u, back)
	}
	_, ok := ParseUnit("tokens")
	require.False(t, ok)
	require.Equal(t, "unit(15)", UnitCount.String())
}
