package postgres

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/uow"
)

// Pool is a provider's pool.
func Pool(p uow.Provider) *pgxpool.Pool { return p.(*provider).pool }
