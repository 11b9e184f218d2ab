// Plugin clickhouse makes tools of what one ClickHouse user can see: each view
// is a tool that reads, each table that the user may insert into is a tool that
// writes one row.
//
// Whose tools these are, the configuration says: host, port, protocol,
// database, user and password, overlaid with the claims of the caller's token.
// The password is a handle here; the host fills it in.
//
// No argument of a caller is ever part of a statement. The arguments of a view
// travel as parameters that the server binds (param_NAME), a row to insert
// travels as the body of the request. Names of databases, tables and columns
// come from the server itself and are quoted.
//
// It speaks to any server from 18.16 on, and asks for what the server has:
// grants where there are SHOW GRANTS, else the setting readonly.
package main

//lint:file-ignore U1000 the host calls the exports

import "github.com/toold/toold/pdk"

//go:wasmexport discover
func discover() int32 { return pdk.Discover(surface) }

//go:wasmexport handle
func handle() int32 { return pdk.Handle(call) }

//go:wasmexport reconcile
func reconciles() int32 { return pdk.Reconcile(reconcile) }

func main() {}
