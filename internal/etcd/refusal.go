// Errors that are not etcd's: a limit of gRPC, or an answer of what stands between the client and etcd, or in its place.

package etcd

import (
	"errors"
	"strings"
	"unicode"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// The library does not import gRPC, so it knows these errors by the text that gRPC gives them. A test compares them
// with those of gRPC itself.
const (
	statusPrefix  = "rpc error: code = "
	tooLargeToGo  = "trying to send message larger than max"
	tooLarge      = "larger than max"
	answeredHTTP  = "unexpected HTTP status code received from server: "
	unexpectedWeb = "received unexpected content-type"
)

const (
	hintSend = "the request is larger than the etcd client may send: make names, owner or transaction shorter, or raise" +
		" clientv3.Config.MaxCallSendMsgSize (and etcd's --max-request-bytes)"
	hintReceive = "the reply is larger than the etcd client may receive, or the request larger than etcd may: raise" +
		" clientv3.Config.MaxCallRecvMsgSize, or ask for less at once"
	hintHTTP      = "a web server or proxy answers in etcd's place: check the endpoints, and that what is between passes gRPC on to etcd"
	hintNotEtcd   = "what answers does not serve this part of etcd's API: check the endpoints, and the proxy between"
	hintNoSpace   = "compact and defragment etcd, then run etcdctl alarm disarm: etcdlock doctor says how"
	hintCorrupt   = "a member has other data than the rest: etcdctl alarm list names it; replace it, then run etcdctl alarm disarm"
	hintForbidden = "what stands between the client and etcd refuses the request: check the rules and the credentials of the proxy or mesh"
)

// grpcStatus is the code and the text of an error that gRPC has made, and that is not one of etcd's own.
func grpcStatus(err error) (code, text string, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if rest, found := strings.CutPrefix(err.Error(), statusPrefix); found {
			return strings.Cut(rest, " desc = ")
		}
	}
	return "", "", false
}

// refusal is what to do about an error that is not etcd's own and that every repetition would have too, "" if it may
// pass.
func refusal(err error) (hint string) {
	code, text, ok := grpcStatus(err)
	switch {
	case !ok:
		return ""
	case code == "ResourceExhausted" && strings.HasPrefix(text, tooLargeToGo):
		return hintSend
	case code == "ResourceExhausted" && strings.Contains(text, tooLarge):
		return hintReceive
	case strings.HasPrefix(text, answeredHTTP):
		// A gateway whose servers are away, or that has too much to do, says so by 408, 429 and 5xx.
		if status := text[len(answeredHTTP):]; strings.HasPrefix(status, "5") || strings.HasPrefix(status, "408") || strings.HasPrefix(status, "429") {
			return ""
		}
		return hintHTTP
	case strings.Contains(text, unexpectedWeb):
		return hintHTTP
	case code == "Unimplemented":
		return hintNotEtcd
	case code == "Unauthenticated", code == "PermissionDenied":
		return hintForbidden
	}
	return ""
}

// ReplyTooLarge reports whether the reply was too large for a limit of gRPC. Etcd has carried the request out, unless
// that was too large for etcd's own limit: gRPC says both with the same words. So a write may have been carried out,
// and a read can be made in pieces.
func ReplyTooLarge(err error) bool { return refusal(err) == hintReceive }

// RequestTooLarge reports whether the request was too large to be sent. It was not sent.
func RequestTooLarge(err error) bool { return refusal(err) == hintSend }

// TooLarge reports whether a request was refused for its size or for that of its reply.
func TooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) || RequestTooLarge(err) || ReplyTooLarge(err)
}

// Explain adds to an error that is not etcd's own, or that an alarm makes, what to do about it, in one line: what stands
// in etcd's place may answer with a whole page.
func Explain(err error) error {
	hint := refusal(err)
	var e *explained
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return &explained{err.Error() + "; " + hintNoSpace, err}
	case errors.Is(err, rpctypes.ErrCorrupt):
		return &explained{err.Error() + "; " + hintCorrupt, err}
	case hint == "":
		return err
	}
	code, text, _ := grpcStatus(err)
	text, _, _ = strings.Cut(text, "\n")
	return &explained{hint + " (" + code + ": " + printable(text) + ")", err}
}

// printable is text without what moves a terminal's cursor, and not longer than a line.
func printable(text string) string {
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Lasts reports whether err is one that a repetition of the request has too, also of a request whose outcome is open: the error of a
// full etcd, or of one whose data is corrupt, or that a request or its reply is too large. Explain has made err.
func Lasts(err error) bool { return errors.As(err, new(*explained)) }

type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }
