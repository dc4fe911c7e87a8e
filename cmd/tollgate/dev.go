package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/tollgate-gateway/tollgate/internal/app"
)

type devCommand struct {
	DataDir       string `help:"Where database, secrets and logs are kept. Default: /var/lib/tollgate as root, else below your home." placeholder:"DIR"`
	Listen        string `default:"127.0.0.1:8080" help:"Address of the traffic listener; port 0 takes a free one."`
	ControlListen string `default:"127.0.0.1:8081" help:"Address of the control listener."`
	OpsListen     string `default:"127.0.0.1:9090" help:"Address of the operations listener."`
	Output        string `enum:"text,json" default:"text" help:"Form of the announcement: ${enum}; json is one line, for scripts."`
}

// Help is shown by --help.
func (devCommand) Help() string {
	return strings.TrimSpace(`
Starts a private PostgreSQL (Unix socket only; as root it drops to an unprivileged user), brings the schema up to date,
makes a demo organization with a team, a virtual key and a mock provider, and serves. The second start finds the same
data. Ctrl-C stops the database too. Secrets are kept in DIR/secrets.env, the log in DIR/tollgate.log.

Where OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY (or GOOGLE_API_KEY), GROQ_API_KEY, MISTRAL_API_KEY or DEEPSEEK_API_KEY is set, that
provider and its models are offered as well. Other settings are taken from the environment as "tollgate serve" takes them, but for addresses, the
database and secrets, which are dev's own.

Example:
  tollgate dev --data-dir /tmp/tollgate --listen 127.0.0.1:0 --output json`)
}

func (c *devCommand) Run(ctx context.Context, s streams) error {
	settings, err := environment(ctx)
	if err != nil {
		return err
	}
	o := app.DevOptions{
		Settings: *settings, DataDir: c.DataDir, Listen: c.Listen, ControlListen: c.ControlListen, OpsListen: c.OpsListen,
		Progress: s.err, Quiet: c.Output == "json",
	}
	return app.Dev(ctx, o, func(r app.DevReady) error {
		if c.Output == "json" {
			return json.NewEncoder(s.out).Encode(r)
		}
		return welcome(s.out, r)
	})
}

const welcomeText = `
{{.Bold}}Tollgate serves.{{.Plain}}

  OpenAI base URL   {{.BaseURL}}/v1
  virtual key       {{.VirtualKey}}
  model             {{.Model}}   (a mock that costs nothing real; see "tollgate mock --help")
  admin API         {{.AdminURL}}/admin/v1
  admin token       TOLLGATE_ADMIN_TOKEN in {{.Secrets}}
  operations        {{.OpsURL}}/readyz  {{.OpsURL}}/metrics

{{.Bold}}Try it with curl{{.Plain}}
  curl {{.BaseURL}}/v1/chat/completions -H "Authorization: Bearer {{.VirtualKey}}" -H "Content-Type: application/json" -d '{"model":"{{.Model}}","messages":[{"role":"user","content":"Hello!"}]}'

{{.Bold}}with Node{{.Plain}}  (npm install openai)
  node --input-type=module -e 'import OpenAI from "openai"; const c = new OpenAI({baseURL: "{{.BaseURL}}/v1", apiKey: "{{.VirtualKey}}"}); const r = await c.chat.completions.create({model: "{{.Model}}", messages: [{role: "user", content: "Hello!"}]}); console.log(r.choices[0].message.content)'

{{.Bold}}with Python{{.Plain}}  (pip install openai)
  python3 -c 'from openai import OpenAI; c = OpenAI(base_url="{{.BaseURL}}/v1", api_key="{{.VirtualKey}}"); print(c.chat.completions.create(model="{{.Model}}", messages=[{"role": "user", "content": "Hello!"}]).choices[0].message.content)'

Then see what it cost:
  curl {{.BaseURL}}/v1/usage -H "Authorization: Bearer {{.VirtualKey}}"

{{.Bold}}Manage it{{.Plain}} from another shell:
  set -a; . {{.Secrets}}; set +a; export TOLLGATE_ADMIN_URL={{.AdminURL}}
  {{.Program}} keys list

Log: {{.LogFile}}    Ctrl-C stops everything, database included.
`

func welcome(w io.Writer, r app.DevReady) error {
	view := struct {
		app.DevReady

		Bold, Plain, Secrets, LogFile, Program string
	}{
		DevReady: r, Secrets: filepath.Join(r.DataDir, "secrets.env"), LogFile: filepath.Join(r.DataDir, "tollgate.log"),
		Program: os.Args[0],
	}
	if coloured(w) {
		view.Bold, view.Plain = "\x1b[1m", "\x1b[0m"
	}
	t, err := template.New("welcome").Parse(welcomeText)
	if err != nil {
		return fmt.Errorf("read the welcome: %w", err)
	}
	return t.Execute(w, view)
}

// coloured reports whether w is a terminal whose user has nothing against escape sequences (https://no-color.org).
func coloured(w io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
