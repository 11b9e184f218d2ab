package deploy_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The part of Kubernetes' and Compose's formats that the manifests use. Decoding is
// strict: a field that is not here, or is misspelled, is an error.
type (
	meta struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	}
	podSecurity struct {
		RunAsNonRoot bool              `yaml:"runAsNonRoot"`
		RunAsUser    int64             `yaml:"runAsUser"`
		RunAsGroup   int64             `yaml:"runAsGroup"`
		FSGroup      int64             `yaml:"fsGroup"`
		Seccomp      map[string]string `yaml:"seccompProfile"`
	}
	mount struct {
		Name     string `yaml:"name"`
		Path     string `yaml:"mountPath"`
		ReadOnly bool   `yaml:"readOnly"`
	}
	container struct {
		Name          string   `yaml:"name"`
		Image         string   `yaml:"image"`
		Args          []string `yaml:"args"`
		RestartPolicy string   `yaml:"restartPolicy"`
		Env           []struct {
			Name  string `yaml:"name"`
			Value string `yaml:"value"`
		} `yaml:"env"`
		EnvFrom []struct {
			SecretRef struct {
				Name     string `yaml:"name"`
				Optional bool   `yaml:"optional"`
			} `yaml:"secretRef"`
		} `yaml:"envFrom"`
		Startup struct {
			Exec struct {
				Command []string `yaml:"command"`
			} `yaml:"exec"`
			Period   int32 `yaml:"periodSeconds"`
			Failures int32 `yaml:"failureThreshold"`
		} `yaml:"startupProbe"`
		Security struct {
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct {
				Drop []string `yaml:"drop"`
			} `yaml:"capabilities"`
		} `yaml:"securityContext"`
		Mounts []mount `yaml:"volumeMounts"`
	}
	podSpec struct {
		Token    *bool       `yaml:"automountServiceAccountToken"`
		Security podSecurity `yaml:"securityContext"`
		Grace    int64       `yaml:"terminationGracePeriodSeconds"`
		Init     []container `yaml:"initContainers"`
		All      []container `yaml:"containers"`
		Volumes  []struct {
			Name     string    `yaml:"name"`
			Empty    *struct{} `yaml:"emptyDir"`
			HostPath *struct {
				Path string `yaml:"path"`
				Type string `yaml:"type"`
			} `yaml:"hostPath"`
		} `yaml:"volumes"`
	}
	pod struct {
		API  string  `yaml:"apiVersion"`
		Kind string  `yaml:"kind"`
		Meta meta    `yaml:"metadata"`
		Spec podSpec `yaml:"spec"`
	}
	daemonSet struct {
		API  string `yaml:"apiVersion"`
		Kind string `yaml:"kind"`
		Meta meta   `yaml:"metadata"`
		Spec struct {
			Selector struct {
				Labels map[string]string `yaml:"matchLabels"`
			} `yaml:"selector"`
			Update   map[string]string `yaml:"updateStrategy"`
			Template struct {
				Meta meta    `yaml:"metadata"`
				Spec podSpec `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	service struct {
		Image       string                                `yaml:"image"`
		Command     []string                              `yaml:"command"`
		User        string                                `yaml:"user"`
		Environment map[string]string                     `yaml:"environment"`
		Volumes     []string                              `yaml:"volumes"`
		ReadOnly    bool                                  `yaml:"read_only"`
		Tmpfs       []string                              `yaml:"tmpfs"`
		CapDrop     []string                              `yaml:"cap_drop"`
		Security    []string                              `yaml:"security_opt"`
		Ulimits     map[string]int                        `yaml:"ulimits"`
		Grace       string                                `yaml:"stop_grace_period"`
		Restart     string                                `yaml:"restart"`
		Network     string                                `yaml:"network_mode"`
		Health      map[string]any                        `yaml:"healthcheck"`
		Depends     map[string]struct{ Condition string } `yaml:"depends_on"`
	}
	compose struct {
		Name     string              `yaml:"name"`
		Services map[string]service  `yaml:"services"`
		Volumes  map[string]struct{} `yaml:"volumes"`
	}
)

func decode(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestKubernetes(t *testing.T) {
	var p pod
	decode(t, "kubernetes/sidecar.yaml", &p)
	var d daemonSet
	decode(t, "kubernetes/daemonset.yaml", &d)
	if p.API != "v1" || p.Kind != "Pod" || d.API != "apps/v1" || d.Kind != "DaemonSet" {
		t.Errorf("kinds: %s %s, %s %s", p.API, p.Kind, d.API, d.Kind)
	}
	for k, v := range d.Spec.Selector.Labels {
		if d.Spec.Template.Meta.Labels[k] != v {
			t.Errorf("the selector %s=%s selects no pod of the template", k, v)
		}
	}
	for name, spec := range map[string]podSpec{"pod": p.Spec, "daemonset": d.Spec.Template.Spec} {
		if !spec.Security.RunAsNonRoot || spec.Security.RunAsUser == 0 || spec.Token == nil || *spec.Token || spec.Grace <= 30 {
			t.Errorf("%s: runs as root, has a token, or ends before calls do: %+v", name, spec.Security)
		}
		var volumes []string
		for _, v := range spec.Volumes {
			if (v.Empty == nil) == (v.HostPath == nil) {
				t.Errorf("%s: volume %s has not one source", name, v.Name)
			}
			volumes = append(volumes, v.Name)
		}
		for _, c := range slices.Concat(spec.Init, spec.All) {
			if s := c.Security; s.Escalation == nil || *s.Escalation || !s.ReadOnly || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("%s: container %s has more than it needs: %+v", name, c.Name, s)
			}
			server := c.Image == "toold-server"
			if !server && c.EnvFrom != nil {
				t.Errorf("%s: container %s, which calls, has secrets", name, c.Name)
			}
			for _, m := range c.Mounts {
				if !slices.Contains(volumes, m.Name) {
					t.Errorf("%s: container %s mounts %s, which is no volume", name, c.Name, m.Name)
				}
				if m.Name == "tools" && !m.ReadOnly || m.Name == "sockets" && !server && !m.ReadOnly {
					t.Errorf("%s: container %s can write to %s", name, c.Name, m.Name)
				}
				if strings.HasSuffix(m.Path, ".sock") {
					t.Errorf("%s: container %s mounts a socket, not its folder", name, c.Name)
				}
			}
		}
	}
}

func TestCompose(t *testing.T) {
	var c compose
	decode(t, "container/compose.yaml", &c)
	for name, s := range c.Services {
		if !s.ReadOnly || s.User == "" || strings.HasPrefix(s.User, "0") || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.Security, "no-new-privileges:true") {
			t.Errorf("%s has more than it needs: %+v", name, s)
		}
		if s.Ulimits["nofile"] < 1024 || s.Ulimits["nproc"] < 1024 {
			t.Errorf("%s has limits of its engine: %v", name, s.Ulimits)
		}
		if !strings.Contains(s.Environment["INSTANCE_ID"], "INSTANCE_ID") || !strings.Contains(s.Environment["TOOL_SOCKET"], "${INSTANCE_ID") {
			t.Errorf("%s does not follow INSTANCE_ID: %v", name, s.Environment)
		}
		for _, v := range s.Volumes {
			tools := strings.Contains(v, "/tools/") // of either
			sockets := strings.HasPrefix(v, "sockets:") && name == "client"
			if (tools || sockets) && !strings.HasSuffix(v, ":ro") {
				t.Errorf("%s can write to %s", name, v)
			}
		}
	}
	client := c.Services["client"]
	if client.Network != "none" || !slices.Contains(client.Volumes, "sockets:/run/toold/sockets:ro") {
		t.Errorf("the client: network %q, volumes %v", client.Network, client.Volumes)
	}
}
