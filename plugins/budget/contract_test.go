package budget_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/budget"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, budget.Module(), "")
}
