package tools

import (
	"slices"
	"strings"
)

// harmless are variables that match a barred prefix but are only data: author and
// date of a commit, how git reads paths, and the name of an environment. A caller may set them if
// tool.json allows it; other GIT_ variables can make git run a command or work
// outside of the tree.
var harmless = []string{
	"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE",
	"GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE",
	"GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS",
	"GIT_NO_REPLACE_OBJECTS", "GIT_DEFAULT_HASH", "GIT_MERGE_AUTOEDIT", "GIT_OPTIONAL_LOCKS", "GIT_REFLOG_ACTION",
	"GIT_DIFF_OPTS", "GIT_MERGE_VERBOSITY", "GIT_PRINT_SHA1_ELLIPSIS",
	"NODE_ENV",
}

// judged are variables that lead git to another place. A tool may open them that never
// runs without a policy, which sees them before every call.
var judged = []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_CEILING_DIRECTORIES"}

// barred are the variables that no tool.json can open to callers, grouped by what
// they do. A * at the end or the beginning of a name matches any text. Case is
// ignored, since some programs read http_proxy and HTTP_PROXY alike.
var barred = []struct {
	why   string
	names []string
}{
	{"makes the loader or the C library run or read what the caller chooses", []string{
		"LD_*", "DYLD_*", "GLIBC_TUNABLES", "GCONV_PATH", "MALLOC_*", "LOCPATH", "NLSPATH", "HOSTALIASES",
		"RES_OPTIONS", "LOCALDOMAIN", "RESOLV_*", "TZDIR", "GETCONF_DIR", "NIS_PATH", "OPENSSL_*", "LIBPATH", "SHLIB_PATH"}},
	{"makes an interpreter or a runtime run what the caller chooses", []string{
		"BASH_*", "BASHOPTS", "SHELLOPTS", "ENV", "IFS", "PS4", "CDPATH", "PROMPT_COMMAND", "ZDOTDIR",
		"PYTHON*", "PERL*", "RUBY*", "GEM_*", "BUNDLE_*", "NODE_*", "NPM_*", "YARN_*", "JAVA_*", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS",
		"CLASSPATH", "PHP_*", "PHPRC", "LUA_*", "GO*", "CARGO_*", "RUSTC*", "TCLLIBPATH", "AWKPATH", "AWKLIBPATH", "MAKEFLAGS", "GNUMAKEFLAGS", "MFLAGS", "DOTNET_*", "CORECLR_*"}},
	{"decides which program is run", []string{
		"PATH", "PATHEXT", "SHELL", "EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESS*", "*_EDITOR", "*_PAGER", "*_BROWSER",
		"SSH_*", "*_ASKPASS", "GPG_*", "RSYNC_*", "TAR_OPTIONS", "GREP_OPTIONS", "TERMINFO*", "TERMCAP", "CC", "CXX", "LD"}},
	{"decides where a program keeps its configuration and files", []string{
		"HOME", "XDG_*", "TMPDIR", "TMP", "TEMP", "CURL_HOME", "NETRC", "GNUPGHOME", "KRB5*", "*_CONFIG", "*_CONFIG_DIR", "*_CONFIG_HOME", "USERPROFILE", "HGRCPATH", "HGUSER", "DOCKER_*", "KUBECONFIG"}},
	{"decides where requests, and the credentials in them, go", []string{
		"*_PROXY", "SSL_*", "CURL_CA_BUNDLE", "CURL_SSL_BACKEND", "REQUESTS_CA_BUNDLE", "SSLKEYLOGFILE", "AWS_CA_BUNDLE", "GH_HOST", "GH_REPO", "AWS_ENDPOINT_*"}},
	{"holds a credential, which is the operator's to give", []string{
		"GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"}},
	{"is of git, where variables run commands and leave the tree (those of the author and committer are admitted, and GIT_DIR, GIT_WORK_TREE and GIT_INDEX_FILE with \"policy\": \"required\")", []string{"GIT_*"}},
	{"is set by this host", []string{"TOOL_*", "TOOLD_*", "TRACEPARENT", "TRACESTATE", "NOTIFY_SOCKET", "LISTEN_*"}},
}

// neverFromCaller returns why no caller may set the variable, as a phrase that follows
// its name, or an empty string if tool.json may allow it.
func neverFromCaller(name string) string {
	if slices.Contains(harmless, name) {
		return ""
	}
	upper := strings.ToUpper(name)
	for _, group := range barred {
		for _, pattern := range group.names {
			prefix, begins := strings.CutSuffix(pattern, "*")
			suffix, ends := strings.CutPrefix(pattern, "*")
			if begins && strings.HasPrefix(upper, prefix) || ends && strings.HasSuffix(upper, suffix) || upper == pattern {
				return group.why
			}
		}
	}
	return ""
}
