package translate

//lint:file-ignore SA1019 sampling and roots go on until clients have gone over

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
)

// ErrorMessage returns the JSON-RPC response to a request that failed. A nil id becomes null,
// as for a request without one.
func ErrorMessage(id json.RawMessage, code int, err *fault.Error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	type detail struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    *Fault `json:"data"`
	}
	b, _ := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   detail          `json:"error"`
	}{"2.0", id, detail{code, err.Error(), FaultOf(err)}})
	return b
}

// MissingCapability returns the error for a request whose client lacks capabilities.
func MissingCapability(lacking *sdk.ClientCapabilities, message string) error {
	required := map[string]any{}
	if lacking.Elicitation != nil {
		required["elicitation"] = lacking.Elicitation
	}
	if lacking.Sampling != nil {
		required["sampling"] = lacking.Sampling
	}
	if lacking.RootsV2 != nil {
		required["roots"] = lacking.RootsV2
	}
	if len(lacking.Extensions) > 0 {
		required["extensions"] = lacking.Extensions
	}
	data, err := json.Marshal(map[string]any{"requiredCapabilities": required})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities, Message: message, Data: data}
}
