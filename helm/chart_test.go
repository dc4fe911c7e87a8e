// Package helm tests the chart by rendering it.
package helm

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// renderer is pinned and runs from the module cache, so that the chart's tool is no dependency of the product.
const renderer = "helm.sh/helm/v3/cmd/helm@v3.22.0"

type object map[string]any

// at follows a path of keys and indexes.
func (o object) at(t *testing.T, path ...any) any {
	t.Helper()
	var v any = map[string]any(o)
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			require.True(t, ok, "no mapping before %v in %v", s, path)
			v = m[s]
		case int:
			l, ok := v.([]any)
			require.True(t, ok && s < len(l), "no item %v in %v", s, path)
			v = l[s]
		}
	}
	return v
}

func helm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", renderer}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(stderr.String())
	}
	return out, nil
}

// render returns the objects by kind/name.
func render(t *testing.T, set ...string) map[string]object {
	t.Helper()
	args := []string{"template", "t", "tollgate", "--set", "secret.existingSecret=keys"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	out, err := helm(t, args...)
	require.NoError(t, err)
	objects := make(map[string]object)
	for dec := yaml.NewDecoder(bytes.NewReader(out)); ; {
		var plain map[string]any
		err := dec.Decode(&plain)
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		o := object(plain)
		name, _ := o.at(t, "metadata", "name").(string)
		kind, _ := o["kind"].(string)
		objects[kind+"/"+name] = o
	}
}

func TestChart_Lint(t *testing.T) {
	t.Parallel()
	_, err := helm(t, "lint", "--strict", "tollgate", "--set", "secret.existingSecret=keys")
	require.NoError(t, err)
}

func TestChart_DefaultsAreSafe(t *testing.T) {
	t.Parallel()
	all := render(t)
	require.Len(t, all, 4, "two Deployments and two Services")
	for _, plane := range []string{"gateway", "control"} {
		d := all["Deployment/t-tollgate-"+plane]
		require.NotNil(t, d)
		pod := []any{"spec", "template", "spec"}
		main := append(pod, "containers", 0)
		require.Equal(t, true, d.at(t, append(pod, "securityContext", "runAsNonRoot")...))
		require.Equal(t, false, d.at(t, append(pod, "enableServiceLinks")...), "service links would set TOLLGATE_ variables")
		require.Equal(t, true, d.at(t, append(main, "securityContext", "readOnlyRootFilesystem")...))
		require.Equal(t, "/readyz", d.at(t, append(main, "readinessProbe", "httpGet", "path")...))
		require.Equal(t, 5, d.at(t, append(main, "readinessProbe", "timeoutSeconds")...))
		require.Nil(t, d.at(t, append(main, "livenessProbe")...), "a liveness probe would restart a busy process")
		require.Equal(t, []any{"migrate", "up"}, d.at(t, append(pod, "initContainers", 0, "args")...))
	}
}

// F193: nothing in the pod needs a writable root, a user of the image's, or a capability.
func TestF193_PodsNeedNothing(t *testing.T) {
	t.Parallel()
	for name, o := range render(t) {
		if !strings.HasPrefix(name, "Deployment/") {
			continue
		}
		for _, list := range []string{"containers", "initContainers"} {
			c := o.at(t, "spec", "template", "spec", list, 0, "securityContext")
			require.Equal(t, map[string]any{
				"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
				"capabilities": map[string]any{"drop": []any{"ALL"}},
			}, c)
		}
		require.Nil(t, o.at(t, "spec", "template", "spec", "volumes"))
	}
}

// F196: whatever the drain value, the pod's grace covers the delay, the drain and the settling of what is cut.
func TestF196_GraceIsComputedFromTheDrainValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ delay, drain int }{{5, 600}, {0, 1}, {300, 86400}} {
		d := render(t, "drain.delaySeconds="+strconv.Itoa(c.delay), "drain.seconds="+strconv.Itoa(c.drain))["Deployment/t-tollgate-gateway"]
		env := map[string]any{}
		list, _ := d.at(t, "spec", "template", "spec", "containers", 0, "env").([]any)
		for _, e := range list {
			m, _ := e.(map[string]any)
			name, _ := m["name"].(string)
			env[name] = m["value"]
		}
		require.Equal(t, strconv.Itoa(c.drain)+"s", env["TOLLGATE_DRAIN_TIMEOUT"])
		require.Equal(t, strconv.Itoa(c.delay)+"s", env["TOLLGATE_DRAIN_DELAY"])
		grace, _ := d.at(t, "spec", "template", "spec", "terminationGracePeriodSeconds").(int)
		require.Equal(t, c.delay+c.drain+30, grace)
	}
}

// F197: nothing is a hook or a Job, and pods name nothing that Helm would have to make first, so no install waits for what
// comes later and no upgrade changes what cannot be changed. That the schema is brought up to date by pods that start at the
// same time is no matter: migrations wait for each other (F158).
func TestF197_NothingWaitsForWhatHelmMakesLater(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"init", "off"} {
		for name, o := range render(t, "migrations.mode="+mode) {
			metadata, _ := o.at(t, "metadata").(map[string]any)
			require.NotContains(t, metadata, "annotations", "%s: hooks are annotations", name)
			if strings.HasPrefix(name, "Service/") {
				continue
			}
			require.True(t, strings.HasPrefix(name, "Deployment/"), name)
			pod, _ := o.at(t, "spec", "template", "spec").(map[string]any)
			require.NotContains(t, pod, "serviceAccountName", name)
			require.NotContains(t, pod, "volumes", name)
			require.Equal(t, mode == "init", pod["initContainers"] != nil, name)
			var lists []any
			for _, kind := range []string{"containers", "initContainers"} {
				list, _ := pod[kind].([]any)
				lists = append(lists, list...)
			}
			for _, c := range lists {
				container, _ := c.(map[string]any)
				require.NotContains(t, container, "envFrom", name)
				env, _ := container["env"].([]any)
				for _, e := range env {
					variable, _ := e.(map[string]any)
					if from, ok := variable["valueFrom"].(map[string]any); ok {
						require.Equal(t, "keys", object(from).at(t, "secretKeyRef", "name"), "%s: only the Secret that was there before", name)
					}
				}
			}
		}
	}
}

func TestChart_Refuses(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"memory limits on two replicas": "limitStore=memory",
		"no secret":                     "secret.existingSecret=",
		"a misspelt value":              "replicas=3",
		"a drain that is no number":     "drain.seconds=long",
	} {
		_, err := helm(t, "template", "t", "tollgate", "--set", "secret.existingSecret=keys", "--set", set)
		require.Error(t, err, name)
	}
}

// F194: the chart makes no secret, so rendering twice gives the same.
func TestF194_UpgradesChangeNoSecret(t *testing.T) {
	t.Parallel()
	first, second := render(t), render(t)
	require.Equal(t, first, second)
	for name := range first {
		require.False(t, strings.HasPrefix(name, "Secret/"))
	}
}
