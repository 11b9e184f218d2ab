package identity

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// openToken verifies or decrypts a token and returns the text of its claims.
func openToken(keys *keys, token string) ([]byte, error) {
	h, encrypted, err := readHeader(token)
	if err != nil {
		return nil, err
	}
	if !encrypted {
		return verify(keys, h, token)
	}
	inner, err := decrypt(keys, h, token)
	if err != nil {
		return nil, err
	}
	if !looksSigned(inner) {
		if !slices.Contains(secretKeys, jose.KeyAlgorithm(h.Alg)) {
			return nil, refuse("it is encrypted for a public key, which anyone can do, and holds no signed token; sign it first, or encrypt it with a shared key (dir, A256KW)")
		}
		return inner, nil
	}
	text := string(inner)
	h, encrypted, err = readHeader(text)
	if err != nil {
		return nil, fmt.Errorf("within the encryption: %w", err)
	}
	if encrypted {
		return nil, refuse("it is encrypted more than once")
	}
	claims, err := verify(keys, h, text)
	if err != nil {
		return nil, err
	}
	return claims, nil
}

// looksSigned reports whether the content of an encrypted token is another token
// instead of an object of claims.
func looksSigned(content []byte) bool {
	t := bytes.TrimLeft(content, " \t\r\n")
	return len(t) > 0 && t[0] != '{'
}

func verify(keys *keys, h header, token string) ([]byte, error) {
	sig, err := jose.ParseSignedCompact(token, signatures)
	if err != nil {
		return nil, refuse("it is malformed")
	}
	found, err := keys.candidates(h, "sig")
	if err != nil {
		return nil, err
	}
	for _, k := range found {
		if claims, err := sig.Verify(k.Public()); err == nil {
			if looksSigned(claims) {
				return nil, refuse("it contains another token instead of claims")
			}
			return claims, nil
		}
	}
	return nil, refuse("its signature is not that of a key of the JWKS file")
}

func decrypt(keys *keys, h header, token string) ([]byte, error) {
	enc, err := jose.ParseEncryptedCompact(token, keyWrappings, encryptions)
	if err != nil {
		return nil, refuse("it is malformed")
	}
	found, err := keys.candidates(h, "enc")
	if err != nil {
		return nil, err
	}
	for _, k := range found {
		if plain, err := enc.Decrypt(k); err == nil {
			return plain, nil
		}
	}
	return nil, refuse("no key of the JWKS file decrypts it")
}
