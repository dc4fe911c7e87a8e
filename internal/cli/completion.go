package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is shown by --help.
func (completionCommand) Help() string {
	return `Examples:
  source <(tollgate completion bash)
  tollgate completion zsh > "${fpath[1]}/_tollgate"
  tollgate completion fish > ~/.config/fish/completions/tollgate.fish`
}

func (c *completionCommand) Run(k *kong.Context) error {
	words := make(map[string][]string)
	collect(k.Model.Node, "", words)
	switch c.Shell {
	case "fish":
		return fish(k.Stdout, k.Model.Name, words)
	case "zsh":
		if _, err := fmt.Fprintf(k.Stdout, "#compdef %s\nautoload -U +X bashcompinit && bashcompinit\n", k.Model.Name); err != nil {
			return err
		}
	}
	return bash(k.Stdout, k.Model.Name, words)
}

// collect lists what may follow each command: subcommands and flags.
func collect(n *kong.Node, path string, words map[string][]string) {
	next := []string{"--help"}
	for _, f := range n.Flags {
		if !f.Hidden && f.Name != "help" {
			next = append(next, "--"+f.Name)
		}
	}
	for _, child := range n.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			next = append(next, child.Name)
			collect(child, strings.TrimSpace(path+" "+child.Name), words)
		}
	}
	slices.Sort(next)
	words[path] = next
}

func paths(words map[string][]string) []string {
	all := make([]string, 0, len(words))
	for path := range words {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

func bash(w io.Writer, name string, words map[string][]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "_%s() {\n  local path= word words\n", name)
	b.WriteString("  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    [[ $word == -* ]] || path=\"${path:+$path }$word\"\n  done\n  case \"$path\" in\n")
	for _, path := range paths(words) {
		pattern := fmt.Sprintf("%q", path)
		if path != "" && !hasChildren(words, path) {
			pattern = fmt.Sprintf("%q*", path) // arguments may follow
		}
		fmt.Fprintf(&b, "    %s) words=%q ;;\n", pattern, strings.Join(words[path], " "))
	}
	fmt.Fprintf(&b, "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\ncomplete -o default -F _%s %s\n", name, name)
	_, err := io.WriteString(w, b.String())
	return err
}

func hasChildren(words map[string][]string, path string) bool {
	for other := range words {
		if strings.HasPrefix(other, path+" ") {
			return true
		}
	}
	return false
}

func fish(w io.Writer, name string, words map[string][]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "complete -c %s -f\n", name)
	for _, path := range paths(words) {
		condition := "__fish_use_subcommand"
		if steps := strings.Fields(path); len(steps) > 0 {
			conditions := make([]string, 0, len(steps))
			for _, s := range steps {
				conditions = append(conditions, "__fish_seen_subcommand_from "+s)
			}
			condition = strings.Join(conditions, "; and ")
		}
		for _, word := range words[path] {
			if flag, ok := strings.CutPrefix(word, "--"); ok {
				fmt.Fprintf(&b, "complete -c %s -n %q -l %s\n", name, condition, flag)
			} else {
				fmt.Fprintf(&b, "complete -c %s -n %q -a %s\n", name, condition, word)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
