package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/tollgate-gateway/tollgate/governance"
)

// translate gives an error of the driver its meaning in the domain and keeps it as cause, once, at the edge.
func translate(err error) error {
	if err == nil || errors.Is(err, governance.ErrStoreAway) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return err // the caller left
	}
	// Whatever the server says instead of letting us in (wrong password, no such database, starting up), it cannot be used.
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return fmt.Errorf("%w: %w", governance.ErrStoreAway, err)
	}
	if fault, ok := errors.AsType[*pgconn.PgError](err); ok {
		return translateFault(err, fault)
	}
	if away(err) {
		return fmt.Errorf("%w: %w", governance.ErrStoreAway, err)
	}
	return err
}

func translateFault(err error, fault *pgconn.PgError) error {
	switch fault.Code {
	case "23505": // unique_violation
		return fmt.Errorf("%w: %w", governance.ErrExists, err)
	case "23503": // foreign_key_violation
		return &governance.InvalidError{Field: column(fault), Reason: "names a row that does not exist"}
	case "23514": // check_violation
		return &governance.InvalidError{Field: column(fault), Reason: "is outside of what is allowed"}
	case "23502": // not_null_violation
		return &governance.InvalidError{Field: column(fault), Reason: "is missing"}
	case "22021", "22P05": // a NUL, or bytes that are no UTF-8
		return &governance.InvalidError{Field: "body", Reason: "has a character that cannot be stored"}
	case "22003", "22008": // out of range
		return &governance.InvalidError{Field: "body", Reason: "has a number or an instant out of range"}
	case "55P03", // lock_not_available
		"57014",          // query_canceled, by statement_timeout
		"25006",          // read_only_sql_transaction: a standby
		"40001", "40P01": // to be tried again
		return fmt.Errorf("%w: %w", governance.ErrStoreAway, err)
	}
	switch fault.Code[:min(2, len(fault.Code))] {
	case "08", // connection
		"53", // insufficient resources
		"57", // operator intervention
		"58": // system error
		return fmt.Errorf("%w: %w", governance.ErrStoreAway, err)
	}
	return err
}

// column makes of a constraint such as teams_name_check the member that broke it.
func column(fault *pgconn.PgError) string {
	if fault.ColumnName != "" {
		return fault.ColumnName
	}
	name := strings.TrimPrefix(fault.ConstraintName, fault.TableName+"_")
	return strings.TrimSuffix(strings.TrimSuffix(name, "_check"), "_fkey")
}

// away reports whether the driver could not reach or use the server at all.
func away(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return pgconn.Timeout(err) || pgconn.SafeToRetry(err) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, puddle.ErrClosedPool) || errors.Is(err, pgx.ErrTxClosed)
}

// wasCut reports whether a connection ended, rather than that nothing came over it or none could be made.
func wasCut(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || err == nil {
		return false
	}
	switch faultCode(err) {
	case "57P01", "57P02": // admin_shutdown, crash_shutdown
		return true
	}
	return !errors.Is(err, context.DeadlineExceeded) && (pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET))
}

// first returns the only row of an answer.
func first[R any](rows []R, err error) (R, error) {
	var none R
	if err != nil {
		return none, err
	}
	if len(rows) == 0 {
		return none, governance.ErrNotFound
	}
	return rows[0], nil
}

// invalid makes an error about one member.
func invalid(field, reason string) error {
	return &governance.InvalidError{Field: field, Reason: reason}
}

// faultCode returns the SQLSTATE of an error, or "".
func faultCode(err error) string {
	if fault, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fault.Code
	}
	return ""
}
