// The largest magnitude of a row of words: a running one in each lane, and the tree over the lanes
// behind the row's last word.
module row_peak (
    input wire clk,
    input wire valid,
    input wire first,
    input wire last,
    input wire [32*16-1:0] word,
    output wire out_valid,
    output wire signed [31:0] out
);
    wire [32*16-1:0] largest;

    genvar i;
    generate
        for (i = 0; i < 16; i = i + 1) begin : lane
            peak running (
                .clk(clk),
                .valid(valid),
                .first(first),
                .value(word[32*i+:32]),
                .out(largest[32*i+:32])
            );
        end
    endgenerate
    max_tree tree (.clk(clk), .values(largest), .out(out));
    delay #(.WIDTH(1), .DEPTH(latency::PEAK + latency::MAX_TREE)) for_end (
        .clk(clk), .in(valid & last), .out(out_valid));
endmodule
