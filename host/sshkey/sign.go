package sshkey

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// maxObject bounds what is signed, in bytes.
const maxObject = 128 << 10

// Namespace is that of git's signatures. What is signed in it means nothing to a login
// over ssh, and nothing to another program that asks for its own namespace.
const Namespace = "git"

// Sign returns the signature of a commit or a tag as ssh-keygen -Y sign writes it
// (PROTOCOL.sshsig of OpenSSH), and what was signed, for the journal.
func (k *Key) Sign(object []byte) (armored []byte, what string, err error) {
	kind := ""
	switch {
	case len(object) > maxObject:
		return nil, "", fmt.Errorf("what is to be signed has over %d bytes", maxObject)
	case begins(object, "tree "):
		kind = "commit"
	case begins(object, "object "):
		kind = "tag"
	default:
		return nil, "", errors.New("what is to be signed is neither a commit nor a tag of git")
	}
	signer, err := ssh.ParsePrivateKey([]byte(k.PEM + "\n"))
	if err != nil {
		return nil, "", fmt.Errorf("secret %s: read the private key: %w; it has to be a file of ssh-keygen without a passphrase", k.Name, err)
	}
	hash := sha512.Sum512(object)
	signed := ssh.Marshal(struct{ Namespace, Reserved, Algorithm, Hash string }{Namespace, "", "sha512", string(hash[:])})
	data := append([]byte("SSHSIG"), signed...)
	var signature *ssh.Signature
	if s, ok := signer.(ssh.AlgorithmSigner); ok && signer.PublicKey().Type() == ssh.KeyAlgoRSA {
		signature, err = s.SignWithAlgorithm(rand.Reader, data, ssh.KeyAlgoRSASHA512)
	} else {
		signature, err = signer.Sign(rand.Reader, data)
	}
	if err != nil {
		return nil, "", fmt.Errorf("secret %s: sign: %w", k.Name, err)
	}
	blob := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Version                                        uint32
		Key, Namespace, Reserved, Algorithm, Signature string
	}{1, string(signer.PublicKey().Marshal()), Namespace, "", "sha512", string(ssh.Marshal(signature))})...)
	return pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: blob}), fmt.Sprintf("%s sha512:%x", kind, hash[:8]), nil
}

// begins reports whether the first line of object is a header with that name and the name of an
// object.
func begins(object []byte, header string) bool {
	line, _, ok := bytes.Cut(object, []byte("\n"))
	name, found := bytes.CutPrefix(line, []byte(header))
	return ok && found && (len(name) == 40 || len(name) == 64) && len(bytes.Trim(name, "0123456789abcdef")) == 0
}
