// Package catalog loads the tools of a folder, tools.d.
//
// A tool is a folder tools.d/<name> with a tool.json, a module or a policy in it
// (docs/tools.md is the reference). A Catalog loads such folders at start, on the
// first request for an unknown name, and when they change. Each load makes an immutable
// generation: a tools.Tool with its definition, its policies and what executes it. A call
// pins a generation with Acquire and runs on it until it ends; a new version is loaded
// beside the old one and replaces it in one step.
//
// The package promises:
//
//   - A generation is consistent: policy, schema, definition and handler of a tool
//     were on disk at the same time.
//   - A version of which any part fails to load never replaces one that works. The
//     old one goes on serving as a whole, and Status reports it. If there is none, or
//     if it would skip a policy that is on disk, every call is refused with
//     TOOL_BROKEN.
//   - A tool never loses its policy by accident. That it had one is recorded in the
//     state folder; until a policy loads again, or tool.json confirms that there is
//     none, the tool is TOOL_BROKEN.
//   - No definition, module or policy is read from outside of tools.d and the
//     restricted folder, even through links; a tool whose folder is a link out of
//     tools.d is UNKNOWN_TOOL. Outside of them only the programs that tools execute
//     are read, to find the interpreters of scripts.
//   - What runs a script is part of its tool's version. A script or interpreter that a
//     call could replace makes the tool TOOL_BROKEN.
//   - A removed folder is UNKNOWN_TOOL from the next Acquire on.
//
// It does not promise that a folder that is changed file by file is loaded only when it
// is complete: if the changes are more than 100 ms apart, the states in between are
// loaded. Rename whole files, or better the whole folder, into place.
//
// The host's pipeline calls Acquire; the admin socket calls List.
package catalog
