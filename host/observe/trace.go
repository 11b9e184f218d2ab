package observe

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracerConfig is fixed when a Tracer is made.
type TracerConfig struct {
	// Endpoint is the URL of an OTLP collector over HTTP, such as
	// "http://localhost:4318/v1/traces". Its headers and certificates are
	// taken from the variables OTEL_EXPORTER_OTLP_….
	Endpoint string
	// Instance identifies the daemon in service.instance.id.
	Instance string
	// Log gets export errors.
	Log *slog.Logger
}

// Tracer creates the spans of one daemon. A nil Tracer creates none.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer returns a Tracer, nil if c has no endpoint.
func NewTracer(ctx context.Context, c TracerConfig) (*Tracer, error) {
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "toold"), attribute.String("service.instance.id", c.Instance))),
		// Follow the caller's sampling decision; sample calls without a trace.
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
	}
	if c.Endpoint == "" {
		return nil, nil
	}
	e, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", c.Endpoint, err)
	}
	options = append(options, sdktrace.WithBatcher(logging{e, c.Log}))
	p := sdktrace.NewTracerProvider(options...)
	return &Tracer{provider: p, tracer: p.Tracer("github.com/toold/toold/host")}, nil
}

// Close flushes pending spans, for at most 3 seconds.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// logging logs export errors to the daemon's log. The library would write them to
// standard error.
type logging struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

func (l logging) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.log.Warn("spans were not sent", "spans", len(spans), "error", err)
	}
	return nil
}

func (l logging) Shutdown(ctx context.Context) error {
	if err := l.SpanExporter.Shutdown(ctx); err != nil {
		l.log.Warn("end the sending of spans", "error", err)
	}
	return nil
}

// Execution holds the attributes of a span tool_execution.
type Execution struct {
	Tool, ExecutionID string
	Attempt           int
	Mutating          bool
	// TraceID is the trace as named by the caller, if that is not a W3C trace.
	TraceID string
}

// Execution starts the span tool_execution of one attempt under parent, a W3C
// traceparent or empty. traceparent is the one to pass to the tool: the span's, or
// parent without a span. end must be called once, with the status of the attempt
// and its error code, if any.
func (t *Tracer) Execution(parent string, x Execution) (traceparent string, end func(status, code string)) {
	if t == nil {
		return parent, func(string, string) {}
	}
	var w3c propagation.TraceContext
	ctx := w3c.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	ctx, span := t.tracer.Start(ctx, "tool_execution", trace.WithAttributes(
		attribute.String("tool", x.Tool), attribute.String("execution_id", x.ExecutionID),
		attribute.Int("attempt", x.Attempt), attribute.Bool("mutating", x.Mutating)))
	if x.TraceID != "" {
		span.SetAttributes(attribute.String("caller.trace_id", x.TraceID))
	}
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	return carrier["traceparent"], func(status, code string) {
		span.SetAttributes(attribute.String("status", status))
		if code != "" {
			span.SetAttributes(attribute.String("code", code))
			span.SetStatus(codes.Error, code)
		}
		span.End()
	}
}
