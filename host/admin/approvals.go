package admin

import (
	"errors"
	"io"
	"net/http"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/pipeline"
	"github.com/toold/toold/host/strictjson"
)

// approvalHandlers are the operations of `toolctl approvals`.
func (d *Daemon) approvalHandlers(mux *http.ServeMux) {
	operator := approval.Person{Operator: true}
	mux.HandleFunc("GET /approvals", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, pipeline.ListApprovals(d.Approvals, operator))
	})
	mux.HandleFunc("GET /approvals/{id}", func(w http.ResponseWriter, r *http.Request) {
		a, err := pipeline.ShowApproval(d.Approvals, r.PathValue("id"), operator)
		if err != nil {
			fail(w, http.StatusNotFound, errNoApproval)
			return
		}
		answer(w, http.StatusOK, a)
	})
	decide := func(approve bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var said adminapi.ApprovalReason
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
			if err == nil && len(body) > 0 {
				err = strictjson.Unmarshal(body, &said)
			}
			if err != nil {
				fail(w, http.StatusBadRequest, err)
				return
			}
			a, err := pipeline.DecideApproval(d.Approvals, r.PathValue("id"), operator, approve, said.Reason)
			switch {
			case errors.Is(err, approval.ErrNotFound):
				fail(w, http.StatusNotFound, errNoApproval)
			case errors.Is(err, approval.ErrState):
				fail(w, http.StatusConflict, errors.New("request "+a.ID+" is "+a.State+", and is not decided any more"))
			case errors.Is(err, approval.ErrInvalid):
				fail(w, http.StatusBadRequest, err)
			case err != nil:
				fail(w, http.StatusServiceUnavailable, err)
			default:
				answer(w, http.StatusOK, a)
			}
		}
	}
	mux.HandleFunc("POST /approvals/{id}/approve", decide(true))
	mux.HandleFunc("POST /approvals/{id}/deny", decide(false))
}

var errNoApproval = errors.New("there is no such request; toolctl approvals list shows those that there are")
