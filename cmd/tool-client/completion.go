package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/host/fault"
)

// completeID is the id of the tool that completes a command line.
const completeID = "tools.complete"

// ownCompletion lists the tools whose completion scripts come with the shell. Those scripts call the program that they
// complete.
var ownCompletion = []string{"git", "gh", "npm", "npx", "curl"}

// completion prints the script with which a shell completes the command lines of the wrappers in this program's
// folder. The script asks the daemon for what their schemas define. It returns the exit code.
func completion(shell string, stdout, stderr io.Writer) int {
	script, ok := completionScripts[shell]
	if !ok {
		return report(stderr, fault.Errorf(fault.InvalidEnvelope, "there is no completion for the shell %q; use bash, zsh or fish", shell))
	}
	program, err := os.Executable()
	var names []string
	if err == nil {
		names, err = wrappersBeside(program)
	}
	if err != nil {
		return report(stderr, err)
	}
	io.WriteString(stdout, strings.NewReplacer("PROGRAM", "'"+strings.ReplaceAll(program, "'", `'\''`)+"'", "NAMES", strings.Join(names, " ")).Replace(script))
	return 0
}

// wrappersBeside returns the names of the links to program in its folder.
func wrappersBeside(program string) ([]string, error) {
	dir := filepath.Dir(program)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for wrappers: %w", err)
	}
	own, err := os.Stat(program)
	if err != nil {
		return nil, fmt.Errorf("look for wrappers: %w", err)
	}
	var names []string
	for _, e := range entries {
		// Only plain names may go into a shell script.
		if strings.Trim(e.Name(), "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || e.Name() == filepath.Base(program) || slices.Contains(ownCompletion, e.Name()) {
			continue
		}
		if fi, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && os.SameFile(own, fi) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// completionScripts are templates for PROGRAM and NAMES. Where there are no suggestions, the shell completes file
// names.
var completionScripts = map[string]string{
	"bash": `# Completion of wrappers of toold's tools, for bash.
_tool_client() {
	local word line before= joined=() i
	# bash has cut words at "=": those are one word to a tool.
	for ((i = 1; i <= COMP_CWORD; i++)); do
		if [[ $i -gt 1 && (${COMP_WORDS[i]} == "=" || ${COMP_WORDS[i - 1]} == "=") ]]; then
			joined[-1]+=${COMP_WORDS[i]}
		else
			joined+=("${COMP_WORDS[i]}")
		fi
	done
	[[ ${COMP_WORDBREAKS} == *=* && ${joined[-1]} == *=* ]] && before=${joined[-1]%%=*}=
	COMPREPLY=()
	while IFS= read -r line; do
		word=${line%%$'\t'*}
		COMPREPLY+=("$(printf %q "${word#"$before"}")")
	done < <(PROGRAM --complete "${COMP_WORDS[0]##*/}" "${joined[@]}" 2> /dev/null < /dev/null)
	if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
		compopt -o default 2> /dev/null
	fi
}
for _tool_client_name in NAMES; do
	complete -F _tool_client "$_tool_client_name"
done
unset _tool_client_name
`,
	"zsh": `# Completion of wrappers of toold's tools, for zsh.
_tool_client() {
	local -a offers shown
	local line
	for line in "${(@f)$(PROGRAM --complete ${words[1]:t} "${(@)words[2,CURRENT]}" 2> /dev/null < /dev/null)}"; do
		[[ -n $line ]] || continue
		offers+=("${line%%$'\t'*}")
		shown+=("${line/$'\t'/  -- }")
	done
	if (( $#offers )); then
		compadd -l -d shown -a offers
	else
		_files
	fi
}
compdef _tool_client NAMES
`,
	"fish": `# Completion of wrappers of toold's tools, for fish.
function __tool_client
	set -l words (commandline -opc) (commandline -ct)
	PROGRAM --complete (basename $words[1]) $words[2..-1] 2> /dev/null < /dev/null
end
for name in NAMES
	complete -c $name -a '(__tool_client)'
end
`,
}
