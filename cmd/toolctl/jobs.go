package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
)

func jobsVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List, show and cancel background calls",
		Long: `A job is a call that was answered before it ran: toolctl call --background starts
one. It runs in its session and ends with it, unless it is detached. Its output can
be read while it runs and afterwards; the last 20 results of a caller are kept.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(jobsList(s), jobsShow(s), jobsCancel(s))
	return cmd
}

func jobsList(s *state) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List running jobs and the last finished ones",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []client.JobInfo
			if err := s.query(cmd, all, "", "jobs", &list); err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(list)
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "JOB\tTOOL\tSTATE\tTOOK\tSESSION\tLAST LINE")
			for _, j := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", j.ID, oneLine(j.Tool), jobState(&j), short(time.Duration(j.ElapsedMS)*time.Millisecond), j.Session, oneLine(j.LastLine))
			}
			return w.Flush()
		},
	}
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func jobState(j *client.JobInfo) string {
	if j.State == "running" {
		return j.State
	}
	return outcomeText(j.Status, j.Code, j.ExitCode)
}

func jobsShow(s *state) *cobra.Command {
	var all, asJSON, follow bool
	cmd := &cobra.Command{
		Use:   "show JOB",
		Short: "Print the output and outcome of a job",
		Long: `Print the output of a job to standard output and standard error. With --follow,
continue until it ends; the exit code is then the tool's own. Only the end of a long
output is kept.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			var printed [2]int64
			out, stderr := shown(s.out), shown(s.err)
			for {
				j, err := s.job(cmd, all, ids[0])
				if err != nil {
					return err
				}
				if asJSON && (!follow || j.State != "running") {
					return s.printJSON(j)
				}
				if !asJSON {
					printed[0] = printRest(out, j.Stdout, j.StdoutBytes, printed[0])
					printed[1] = printRest(stderr, j.Stderr, j.StderrBytes, printed[1])
				}
				if !follow || j.State != "running" {
					return s.jobEnd(j)
				}
				select {
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				case <-time.After(200 * time.Millisecond):
				}
			}
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false, "continue until the job ends")
	allFlag(cmd, &all)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// job returns one job with its output.
func (s *state) job(cmd *cobra.Command, all bool, id string) (*client.JobInfo, error) {
	var list []client.JobInfo
	// The word stdout in the selector includes the output in the response.
	if err := s.query(cmd, all, "", "jobs.filter(j, j.id == "+strconv.Quote(id)+" && j.stdout != null)", &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, &fault.Error{Code: fault.NotRunning, Message: fmt.Sprintf("there is no job %q; toolctl jobs list shows all jobs", id)}
	}
	return &list[0], nil
}

// printRest prints what follows the first printed bytes, as far as it is kept, and returns the new count of printed
// bytes.
func printRest(w io.Writer, text string, total, printed int64) int64 {
	fresh := total - printed
	if n := int64(len(text)); fresh < n {
		text = strings.ToValidUTF8(text[n-fresh:], "\uFFFD")
	}
	fmt.Fprint(w, text)
	return total
}

// jobEnd reports how a job ended, and converts it to an exit code.
func (s *state) jobEnd(j *client.JobInfo) error {
	if j.State == "running" {
		progress := ""
		if len(j.Progress) > 0 && string(j.Progress) != "null" {
			progress = ", " + oneLine(string(j.Progress))
		}
		fmt.Fprintf(s.err, "toolctl: running for %s%s\n", short(time.Duration(j.ElapsedMS)*time.Millisecond), progress)
		return nil
	}
	if len(j.Data) > 0 && string(j.Data) != "null" && j.StdoutBytes == 0 {
		fmt.Fprintf(shown(s.out), "%s\n", j.Data)
	}
	if j.OutputNote != "" {
		fmt.Fprintf(s.err, "toolctl: %s\n", oneLine(j.OutputNote))
	}
	if j.Code != "" {
		fmt.Fprintf(s.err, "toolctl: %s: %s\n", j.Code, oneLine(j.Message))
		return exitStatus(max(1, cmp.Or(j.ExitCode, j.Code.ExitCode())))
	}
	if j.ExitCode != 0 {
		return exitStatus(j.ExitCode)
	}
	return nil
}

func jobsCancel(s *state) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "cancel JOB...",
		Short: "End jobs",
		Args:  args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			for _, id := range ids {
				var answer struct {
					Cancelled bool `json:"cancelled"`
				}
				q := client.SessionCall{Name: "mutate", Payload: map[string]any{"op": "cancel-job", "params": map[string]string{"job": id}}}
				if err := s.do(cmd, all, q, &answer); err != nil {
					return err
				}
				what := "cancelled"
				if !answer.Cancelled {
					what = "had ended before"
				}
				fmt.Fprintf(s.out, "%s %s\n", id, what)
			}
			return nil
		},
	}
	allFlag(cmd, &all)
	return cmd
}
