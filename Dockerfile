# A static binary on nothing: any uid, read-only root, no shell. Build with: docker build -t tollgate .
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG COMMIT=unknown
RUN CGO_ENABLED=0 go build -trimpath -tags timetzdata \
    -ldflags "-s -w -X github.com/tollgate-gateway/tollgate/internal/version.Version=${VERSION} \
              -X github.com/tollgate-gateway/tollgate/internal/version.Commit=${COMMIT}" \
    -o /tollgate ./cmd/tollgate

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /tollgate /tollgate
COPY LICENSE /LICENSE
USER 65532:65532
EXPOSE 8080 8081 9090
ENTRYPOINT ["/tollgate"]
CMD ["serve"]
